"""Calls to a bucket, by obstore: one request each where that is possible, with arguments and results that pickle."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar

from trainers.storage.bucket import CREATOR
from trainers.storage.objects.object_errors import ErrorKind, ObjectError, error_of
from trainers.storage.objects.object_service import ObjectService

P = ParamSpec("P")
T = TypeVar("T")

_MIB = 1024 * 1024
_IN_ONE_PIECE_BYTES, _PART_BYTES, _PARALLEL_PARTS = 32 * _MIB, 16 * _MIB, 4
# Of one request, on a slow line.
_TIMEOUT = timedelta(minutes=10)
_CLIENTS: "dict[tuple[Any, ...], ObjectClient]" = {}


class Timeouts(NamedTuple):
    """How long a connection may take, and how long no byte may come."""

    connect_s: float
    read_s: float


@dataclass(frozen=True)
class Bucket:
    """A bucket of a service, and how long and how often a request to it is tried."""

    service: ObjectService
    name: str
    timeouts: Timeouts
    attempts: int = 1


@dataclass(frozen=True)
class StoredObject:
    """What is known of an object without its content; `creator` is known of one that was asked for by itself."""

    name: str
    size_bytes: int
    modified_s: float
    etag: str
    creator: str | None = None


def _with_known_errors(call: Callable[P, T]) -> Callable[P, T]:
    @wraps(call)
    def known(*arguments: P.args, **named: P.kwargs) -> T:
        try:
            return call(*arguments, **named)
        except Exception as error:
            if (found := error_of(error)) is None:
                raise
            raise found from error

    return known


class ObjectClient:
    """A bucket's objects by their names. Every method raises ObjectError, or OSError of a local file."""

    def __init__(self, store: Any):
        self._store = store

    @_with_known_errors
    def read(self, name: str) -> bytes:
        result = self._store.get(name)
        return _all_of(name, result.bytes().to_bytes(), result.meta["size"])

    @_with_known_errors
    def read_part(self, name: str, start: int, most: int) -> bytes:
        try:
            return bytes(self._store.get_range(name, start=start, length=most))
        except Exception as error:
            found = error_of(error)
            if found is not None and found.kind is ErrorKind.BEYOND_END:
                return b""
            raise

    @_with_known_errors
    def write(self, name: str, data: bytes) -> None:
        self._store.put(name, data, use_multipart=False)

    @_with_known_errors
    def create(self, name: str, data: bytes, creator: str) -> None:
        """Writes an object that is not there yet; ErrorKind.EXISTS where it is."""
        self._store.put(name, data, use_multipart=False, mode="create", attributes={CREATOR: creator})

    @_with_known_errors
    def head(self, name: str) -> StoredObject:
        result = self._store.get(name, options={"head": True})
        return _stored(result.meta, result.attributes.get(CREATOR))

    @_with_known_errors
    def listed(self, folder: str, after: str | None = None, until: str | None = None) -> list[StoredObject]:
        """The objects below a folder, "" for all, by name; `after` is the name before the first, `until` the last."""
        return list(self._chunks(folder, after, until))

    def _chunks(self, folder: str, after: str | None, until: str | None) -> Iterator[StoredObject]:
        for chunk in self._store.list(prefix=folder or None, offset=after, chunk_size=1000):
            yield from map(_stored, chunk)
            if until is not None and chunk and chunk[-1]["path"] >= until:
                return

    @_with_known_errors
    def folders(self, folder: str) -> list[str]:
        """The folders right below a folder."""
        found: list[str] = self._store.list_with_delimiter(folder or None)["common_prefixes"]
        return found

    @_with_known_errors
    def delete(self, name: str) -> None:
        self._store.delete(name)

    @_with_known_errors
    def copy(self, source: str, target: str) -> None:
        self._store.copy(source, target)

    def upload(self, local: Path, name: str) -> None:
        # An error of opening is the disk's; both are FileNotFoundError.
        with local.open("rb") as file:
            self._upload(file, name, os.fstat(file.fileno()).st_size > _IN_ONE_PIECE_BYTES)

    @_with_known_errors
    def _upload(self, file: Any, name: str, in_parts: bool) -> None:
        self._store.put(name, file, use_multipart=in_parts, chunk_size=_PART_BYTES, max_concurrency=_PARALLEL_PARTS)

    @_with_known_errors
    def download(self, name: str, local: Path) -> None:
        result = self._store.get(name)
        size_bytes = result.meta["size"]
        with local.open("wb") as file:
            for chunk in result.stream(min_chunk_size=_MIB):
                file.write(chunk)
            written = file.tell()
        if written != size_bytes:
            raise _cut(name, written, size_bytes)


def client_of(bucket: Bucket) -> ObjectClient:
    """This process's client for a bucket, with the credentials of now.

    Raises:
        ObjectError: they cannot be read.
    """
    # Secrets may be resolved later than the first client is made.
    known = frozenset(item for item in os.environ.items() if item[0].startswith(bucket.service.variables))
    key = (bucket, known)
    if key not in _CLIENTS:
        _CLIENTS[key] = _new_client(bucket)
    return _CLIENTS[key]


@_with_known_errors
def _new_client(bucket: Bucket) -> ObjectClient:
    options = {
        "allow_http": (bucket.service.endpoint_url or "").startswith("http://"),
        "connect_timeout": timedelta(seconds=bucket.timeouts.connect_s),
        "read_timeout": timedelta(seconds=bucket.timeouts.read_s),
        "timeout": _TIMEOUT,
    }
    retry = {"max_retries": bucket.attempts - 1}
    return ObjectClient(bucket.service.new_store(bucket.name, client_options=options, retry_config=retry))


def _all_of(name: str, data: bytes, size_bytes: int) -> bytes:
    if len(data) != size_bytes:
        raise _cut(name, len(data), size_bytes)
    return data


def _cut(name: str, received: int, size_bytes: int) -> ObjectError:
    return ObjectError(ErrorKind.BROKEN, f"{name} has {size_bytes} bytes, of which {received} were received")


def _stored(meta: Any, creator: str | None = None) -> StoredObject:
    return StoredObject(
        meta["path"], meta["size"], meta["last_modified"].timestamp(), (meta["e_tag"] or "").strip('"'), creator
    )
