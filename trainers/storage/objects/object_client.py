"""Calls to a bucket, with obstore: one request each if possible, with arguments and results that can be pickled.

obstore has few types of errors; the others are distinguished by their text.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError, PreconditionError

from trainers.storage.bucket import CREATOR
from trainers.storage.objects.object_services import ObjectService
from trainers.storage.retry import TRANSIENT_STATUSES

_MIB = 1024 * 1024
_IN_ONE_PIECE_BYTES, _PART_BYTES, _PARALLEL_PARTS = 32 * _MIB, 16 * _MIB, 4
# For one request, on a slow connection.
_TIMEOUT = timedelta(minutes=10)
_CLIENTS: "dict[tuple[Any, ...], ObjectClient]" = {}
_NO_BUCKET = ("ContainerNotFound", "NoSuchBucket", "specified container does not exist")
# https://learn.microsoft.com/en-us/rest/api/storageservices/common-rest-api-error-codes, and Azurite's.
_REFUSED = ("AuthenticationFailed", "AuthorizationFailure", "InvalidAuthenticationInfo")
_NO_CREDENTIALS = ("credential error", "service account file", "pem file", "Invalid Access Key")
_STATUS = re.compile(r"status code: (\d{3})([^:]*)")
_CODE, _MESSAGE = re.compile(r"<Code>([^<]+)</Code>"), re.compile(r"<Message>([^<]+)</Message>")
_QUERY, _PREFIX = re.compile(r"\?\S*"), re.compile(r"^Generic \w+ error: ")


class ErrorKind(Enum):
    """The kind of error of a service, or of the connection to it."""

    MISSING = "there is no such object"
    NO_BUCKET = "there is no such bucket"
    EXISTS = "the object is there already"
    BEYOND_END = "the object ends before the part that was asked for"
    ODD_NAME = "the name of an object in a listing is no path"
    DENIED = "permission denied"
    REFUSED = "the credentials are refused"
    NO_CREDENTIALS = "no credentials"
    NO_IDENTITY_SERVICE = "no credentials from the service that a cloud's machines ask"
    UNREACHABLE = "the service cannot be reached"
    BROKEN = "the connection broke"
    BUSY = "the service could not respond"
    OTHER = "another error"


class ObjectError(Exception):
    """An error of a service, in a form that can be sent to another process."""

    def __init__(self, kind: ErrorKind, message: str):
        super().__init__(kind, message)
        self.kind, self.message = kind, message


class Timeouts(NamedTuple):
    """Seconds to connect, and seconds without a byte received."""

    connect_s: float
    read_s: float


@dataclass(frozen=True)
class Bucket:
    """A bucket of a service, with timeouts and the number of attempts of a request."""

    service: ObjectService
    name: str
    timeouts: Timeouts
    attempts: int = 1


@dataclass(frozen=True)
class StoredObject:
    """An object's metadata; `creator` is known only if the object was requested by itself."""

    name: str
    size_bytes: int
    modified_s: float
    etag: str
    creator: str | None = None


class ObjectClient:
    """A bucket's objects by name; `perform` converts errors to ObjectError."""

    def __init__(self, store: Any):
        self._store = store

    def read(self, name: str) -> bytes:
        result = self._store.get(name)
        return _all_of(name, result.bytes().to_bytes(), result.meta["size"])

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
        """Writes a new object; the error is ErrorKind.EXISTS if it exists."""
        self._store.put(name, data, use_multipart=False, mode="create", attributes={CREATOR: creator})

    def head(self, name: str) -> StoredObject:
        result = self._store.get(name, options={"head": True})
        return _stored(result.meta, result.attributes.get(CREATOR))

    def listed(self, folder: str, after: str | None = None, until: str | None = None) -> list[StoredObject]:
        """Returns the objects below a folder, "" for all, by name: those after `after`, up to `until`."""
        return list(self._chunks(folder, after, until))

    def _chunks(self, folder: str, after: str | None, until: str | None) -> Iterator[StoredObject]:
        for chunk in self._store.list(prefix=folder or None, offset=after, chunk_size=1000):
            yield from map(_stored, chunk)
            if until is not None and chunk and chunk[-1]["path"] >= until:
                return

    def folders(self, folder: str) -> list[str]:
        """Returns the folders directly below a folder."""
        found: list[str] = self._store.list_with_delimiter(folder or None)["common_prefixes"]
        return found

    def delete(self, name: str) -> None:
        self._store.delete(name)

    def copy(self, source: str, target: str) -> None:
        self._store.copy(source, target)

    def upload(self, local: Path, name: str) -> None:
        with local.open("rb") as file:
            in_parts = os.fstat(file.fileno()).st_size > _IN_ONE_PIECE_BYTES
            self._store.put(name, file, use_multipart=in_parts, chunk_size=_PART_BYTES, max_concurrency=_PARALLEL_PARTS)

    def download(self, name: str, local: Path) -> None:
        result = self._store.get(name)
        size_bytes = result.meta["size"]
        with local.open("wb") as file:
            for chunk in result.stream(min_chunk_size=_MIB):
                file.write(chunk)
            written = file.tell()
        if written != size_bytes:
            raise _cut(name, written, size_bytes)


def perform(bucket: Bucket, method: str, arguments: tuple[Any, ...]) -> Any:
    """Returns the result of a method of ObjectClient. Raises ObjectError, or OSError for a local file."""
    try:
        return getattr(_client_of(bucket), method)(*arguments)
    except Exception as error:
        if (found := error_of(error)) is None:
            raise
        raise found from error


def _client_of(bucket: Bucket) -> ObjectClient:
    """Returns this process's client for a bucket, with the present credentials."""
    # Secrets may be resolved after the first client is made.
    known = frozenset(item for item in os.environ.items() if item[0].startswith(bucket.service.variables))
    key = (bucket, known)
    if key not in _CLIENTS:
        _CLIENTS[key] = _new_client(bucket)
    return _CLIENTS[key]


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


def error_of(error: Exception) -> ObjectError | None:
    """Converts an exception of obstore; returns None for any other."""
    # An error of opening a local file has an errno.
    if not isinstance(error, BaseError | FileNotFoundError | ValueError) or getattr(error, "errno", None) is not None:
        return None
    text, _, details = str(error).partition("\n\nDebug source:")
    found = _STATUS.search(text)
    status = int(found[1]) if found else None
    return ObjectError(_kind_of(error, text, details, status), _message_of(text))


def _kind_of(error: Exception, text: str, details: str, status: int | None) -> ErrorKind:
    is_of_token, is_busy = "token request" in text, status in TRANSIENT_STATUSES
    rules = (
        (ErrorKind.EXISTS, isinstance(error, AlreadyExistsError | PreconditionError)),
        (ErrorKind.NO_IDENTITY_SERVICE, is_of_token and (status is None or is_busy)),
        (ErrorKind.NO_CREDENTIALS, is_of_token or any(each in text for each in _NO_CREDENTIALS)),
        (ErrorKind.ODD_NAME, "object with invalid path" in text),
        (ErrorKind.NO_BUCKET, any(each in text for each in _NO_BUCKET)),
        (ErrorKind.REFUSED, any(each in text for each in _REFUSED) or status == 401),
        (ErrorKind.DENIED, isinstance(error, PermissionDeniedError) or status == 403),
        (ErrorKind.MISSING, isinstance(error, FileNotFoundError) or status == 404),
        (ErrorKind.BEYOND_END, status == 416 or "range starting at" in text),
        (ErrorKind.BUSY, is_busy),
        (ErrorKind.OTHER, status is not None),
        (ErrorKind.UNREACHABLE, "kind: Connect" in details),
        (ErrorKind.BROKEN, "HttpError" in details or "HTTP error" in text),
    )
    return next((kind for kind, holds in rules if holds), ErrorKind.OTHER)


def _message_of(text: str) -> str:
    """Returns one line of an error's text, without URLs' queries, which may contain a signature."""
    status, code, message = _STATUS.search(text), _CODE.search(text), _MESSAGE.search(text)
    if status is None:
        return _PREFIX.sub("", _QUERY.sub("", text.partition("\n")[0].rpartition(" - ")[2]))
    parts = [status[1], code[1] if code is not None else status[2].strip()]
    said = message[1].partition("\n")[0].strip() if message is not None else ""
    return " ".join(parts) + (f": {said}" if said else "")
