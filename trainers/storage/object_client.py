"""Makes calls to a bucket with obstore, each in one request if possible; arguments and results can be pickled.

A forked process lacks obstore's threads; it makes its calls through a helper process. Forked processes are torch's data
loaders, which read prepared shards.
"""

import os
import subprocess
import sys
import threading
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, NamedTuple

from trainers.storage.base import Entry, in_parallel
from trainers.storage.object_errors import ErrorKind, ObjectError, error_of
from trainers.storage.object_services import ObjectService

# The metadata that identify an object's creator. Azure allows no hyphen in a name, and proxies drop underscores.
CREATOR = "rayscribecreator"
_MIB = 1024 * 1024
# Parts are small, so that a slow connection sends those of several files within the timeout of an upload.
_IN_ONE_PIECE_BYTES, _PART_BYTES, _PARALLEL_PARTS = 16 * _MIB, 8 * _MIB, 4
# S3's limit of the parts of an object.
_MOST_PARTS = 10_000
# Time limit of one request, long enough for a slow connection.
_TIMEOUT = timedelta(minutes=10)
_CLIENTS: "dict[tuple[Any, ...], ObjectClient]" = {}
_HELPERS: "dict[int, Helper]" = {}
_LOCKS: dict[int, threading.Lock] = {}
_PROCESS = os.getpid()


class Timeouts(NamedTuple):
    """Seconds to connect, and seconds without a byte received, which include those to send a request."""

    connect_s: float
    read_s: float


@dataclass(frozen=True)
class Bucket:
    """A bucket of a service, with timeouts and the number of attempts of a request."""

    service: ObjectService
    name: str
    timeouts: Timeouts
    attempts: int = 1


class ObjectClient:
    """Accesses the objects of a bucket by name, which is the key of an entry; `perform` converts the errors."""

    def __init__(self, store: Any):
        self._store = store

    def read(self, name: str) -> bytes:
        result = self._store.get(name)
        data: bytes = result.bytes().to_bytes()
        _refuse_cut(name, len(data), result.meta["size"])
        return data

    def read_part(self, name: str, start: int, most: int) -> bytes:
        try:
            return bytes(self._store.get_range(name, start=start, length=most))
        except Exception as error:
            found = error_of(error)
            if found is not None and found.kind is ErrorKind.BEYOND_END:
                return b""
            raise

    def write(self, name: str, data: bytes) -> None:
        self._store.put(name, data, use_multipart=False)

    def create(self, name: str, data: bytes, creator: str) -> None:
        """Writes a new object; fails with ErrorKind.EXISTS if there is already one."""
        self._store.put(name, data, use_multipart=False, mode="create", attributes={CREATOR: creator})

    def head(self, name: str) -> tuple[Entry, str | None]:
        """Returns an object's entry and creator."""
        result = self._store.get(name, options={"head": True})
        found = _entry(result.meta)
        if not found.modified_s:
            raise ObjectError(ErrorKind.NO_SERVICE, f"no date of {name}")
        return found, result.attributes.get(CREATOR)

    def listed(self, folder: str, after: str | None = None, until: str | None = None) -> list[Entry]:
        """Returns the objects below a folder ("" for all) that are after `after`, by name, at least up to `until`."""
        found: list[Entry] = []
        for chunk in self._store.list(prefix=folder or None, offset=after, chunk_size=1000):
            found += map(_entry, chunk)
            if until is not None and found and found[-1].key >= until:
                break
        return found

    def folders(self, folder: str) -> list[str]:
        """Returns the names of the folders directly below a folder."""
        found: list[str] = self._store.list_with_delimiter(folder or None)["common_prefixes"]
        return found

    def delete(self, name: str) -> None:
        self._store.delete(name)

    def copy(self, name: str, source: str) -> None:
        self._store.copy(source, name)

    def upload(self, name: str, local: Path) -> None:
        with local.open("rb") as file:
            size_bytes = os.fstat(file.fileno()).st_size
            self._store.put(
                name,
                file,
                use_multipart=size_bytes > _IN_ONE_PIECE_BYTES,
                chunk_size=max(_PART_BYTES, size_bytes // _MOST_PARTS + 1),
                max_concurrency=_PARALLEL_PARTS,
            )

    def download(self, name: str, local: Path) -> None:
        """Downloads an object; a large one is downloaded in parts, each of which is retried."""
        result = self._store.get(name)
        found = _entry(result.meta)
        local.write_bytes(b"")
        if found.size_bytes <= _IN_ONE_PIECE_BYTES:
            _save(result, found, local, 0, found.size_bytes)
            return
        # Closes the response, of which only the headers were used.
        del result

        def download_part(start: int) -> None:
            end = min(start + _PART_BYTES, found.size_bytes)
            _save(self._store.get(name, options={"range": (start, end)}), found, local, start, end)

        in_parallel(download_part, range(0, found.size_bytes, _PART_BYTES), threads=_PARALLEL_PARTS)


class Helper:
    """A process that makes calls for this process, and ends when this process does."""

    def __init__(self) -> None:
        self._connection, remote = Pipe()
        # The helper is started, not forked; it must import from the same paths.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command = [sys.executable, "-c", f"from {__name__} import serve; serve({remote.fileno()})"]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            pass_fds=[remote.fileno()],
            env=environment,
            cwd=Path.cwd(),
            start_new_session=True,
        )
        remote.close()

    @property
    def lives(self) -> bool:
        return self._process.poll() is None

    def call(self, bucket: Bucket, method: str, arguments: tuple[Any, ...]) -> Any:
        """Returns the result of a call, or raises its exception; raises ConnectionError if the helper has ended."""
        try:
            self._connection.send((bucket, method, arguments))
            succeeded, result = self._connection.recv()
        except EOFError as error:
            raise ConnectionError(f"the process {self._process.pid} that reads buckets for this one ended") from error
        if succeeded:
            return result
        raise result


def serve(descriptor: int) -> None:
    """Makes the calls that arrive at a connection, one after another, until it is closed."""
    connection = Connection(descriptor)
    while True:
        try:
            bucket, method, arguments = connection.recv()
        except (EOFError, OSError):
            return
        try:
            answer = (True, perform(bucket, method, arguments))
        except Exception as error:
            answer = (False, error)
        connection.send(answer)


def call(bucket: Bucket, method: str, *arguments: Any) -> Any:
    """Returns the result of a method of ObjectClient. Raises ObjectError, or OSError for a local file."""
    process = os.getpid()
    # A process that was forked after this module was loaded lacks obstore's threads.
    if process == _PROCESS:
        return perform(bucket, method, arguments)
    with _lock():
        helper = _HELPERS.get(process)
        if helper is None or not helper.lives:
            helper = _HELPERS[process] = Helper()
        return helper.call(bucket, method, arguments)


def perform(bucket: Bucket, method: str, arguments: tuple[Any, ...]) -> Any:
    """Makes a call in this process."""
    try:
        return getattr(_client_of(bucket), method)(*arguments)
    except Exception as error:
        if (found := error_of(error)) is None:
            raise
        raise found from error


def _client_of(bucket: Bucket) -> ObjectClient:
    """Returns this process's client for a bucket, with the credentials that the environment has now."""
    # Secrets may be resolved after the first client is made.
    known = frozenset(item for item in os.environ.items() if item[0].startswith(bucket.service.variables))
    key = (bucket, known)
    with _lock():
        if key not in _CLIENTS:
            _CLIENTS[key] = _new_client(bucket)
        return _CLIENTS[key]


def _lock() -> threading.Lock:
    # One per process, since a lock copied by a fork may be held by a thread that was not copied.
    return _LOCKS.setdefault(os.getpid(), threading.Lock())


def _new_client(bucket: Bucket) -> ObjectClient:
    options = {
        "allow_http": (bucket.service.endpoint_url or "").startswith("http://"),
        "connect_timeout": timedelta(seconds=bucket.timeouts.connect_s),
        "read_timeout": timedelta(seconds=bucket.timeouts.read_s),
        "timeout": _TIMEOUT,
    }
    retry = {"max_retries": bucket.attempts - 1}
    return ObjectClient(bucket.service.new_store(bucket.name, client_options=options, retry_config=retry))


def _save(result: Any, found: Entry, local: Path, start: int, end: int) -> None:
    """Writes a response with an object's bytes from `start` up to `end` (exclusive) to their place in a file."""
    if _entry(result.meta).etag != found.etag:
        raise ObjectError(ErrorKind.BROKEN, f"{found.key} was replaced during its download")
    with local.open("r+b") as file:
        file.seek(start)
        for chunk in result.stream(min_chunk_size=_MIB):
            file.write(chunk)
        _refuse_cut(found.key, file.tell() - start, end - start)


def _refuse_cut(name: str, received: int, size_bytes: int) -> None:
    if received != size_bytes:
        raise ObjectError(ErrorKind.BROKEN, f"{name} has {size_bytes} bytes, of which {received} were received")


def _entry(meta: Any) -> Entry:
    return Entry(meta["path"], meta["size"], meta["last_modified"].timestamp(), (meta["e_tag"] or "").strip('"'))
