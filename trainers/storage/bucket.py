"""The common base of storages in buckets, for all services."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar
from urllib.parse import urlsplit
from uuid import uuid4

from trainers.errors import StorageError
from trainers.storage.base import PART_SUFFIX, Storage, clean_key, in_parallel, with_line
from trainers.storage.retry import Explanation, RetryPolicy

T = TypeVar("T")

# Metadata of an object that identify its creator. Azure allows no hyphen in a name, and proxies drop underscores.
CREATOR = "rayscribecreator"


@dataclass(frozen=True)
class BucketStorage(Storage):
    """Objects of a bucket below a clean key, the prefix; "" is the complete bucket."""

    scheme: ClassVar[str]

    bucket: str
    prefix: str
    retry: RetryPolicy

    def url(self, key: str = "") -> str:
        path = self._object(key) if key else self.prefix
        return f"{self.scheme}{self.bucket}/{path}" if path else f"{self.scheme}{self.bucket}"

    def sub(self, prefix: str) -> Self:
        return replace(self, prefix=self._object(prefix) if prefix else self.prefix)

    def append_line(self, key: str, line: str) -> None:
        so_far = self.read_bytes(key) if self.exists(key) else b""
        # Only the write is retried, with the same bytes: a second read might find the line there.
        self.write_bytes(key, so_far + with_line(so_far, line))

    def _delete_all(self, folder: str) -> None:
        # One by one: services differ in the request that deletes several, and in the checksum that it requires.
        in_parallel(lambda entry: self.delete(entry.key), self.list_files(folder))

    def download_file(self, key: str, local: Path) -> None:
        part = local.parent / f".{uuid4().hex}{PART_SUFFIX}"

        def download(name: str) -> None:
            local.parent.mkdir(parents=True, exist_ok=True)
            self._download(name, part)
            part.replace(local)

        try:
            self._run(f"download to {local} from", key, download)
        finally:
            part.unlink(missing_ok=True)

    def for_pyarrow(self) -> tuple[str, Any]:
        """See Storage. The filesystem finds the credentials itself, so none are pickled with it."""
        # Imported lazily: pyarrow takes a fifth of a second to load.
        from trainers.storage.pyarrow_filesystem import filesystem_of  # noqa: PLC0415

        return self.url().removeprefix(self.scheme), filesystem_of(replace(self, prefix=""), self.bucket)

    @abstractmethod
    def _download(self, name: str, part: Path) -> None:
        """Downloads the object `name` to a file."""

    @abstractmethod
    def _explain(self, error: BaseException) -> Explanation | None:
        """Returns the meaning of an exception from a call to the bucket; None if neither service nor disk raised it."""

    def _object(self, key: str) -> str:
        """Returns the name of `key` in the bucket."""
        return f"{self.prefix}/{clean_key(key)}" if self.prefix else clean_key(key)

    def _key(self, name: str) -> str:
        return name.removeprefix(f"{self.prefix}/") if self.prefix else name

    def _below(self, prefix: str) -> str:
        """Returns the prefix of the names of all objects in a folder."""
        folder = self._object(prefix) if prefix else self.prefix
        return f"{folder}/" if folder else ""

    def _run(self, action: str, key: str, call: Callable[[str], T]) -> T:
        """Calls `call` with the name of `key` in the bucket."""
        name = self._object(key)
        return self._retry(action, self.url(key), lambda: call(name))

    def _retry(self, action: str, url: str, call: Callable[[], T]) -> T:
        return self.retry.run(call, action=action, url=url, explain=self._explain)


def checked_endpoint(field: str, url: str, fix: str) -> str:
    """Returns the URL of a server without a trailing slash.

    Raises:
        StorageError: it is not the URL of a server, or has a password.
    """
    parts = urlsplit(url)
    if "@" in parts.netloc or parts.query:
        # Not shown: the URL has a password, or a signature.
        raise StorageError(f"{field} holds credentials: {fix}")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.fragment:
        raise StorageError(f"{field} {url!r} is not the URL of a service: give http(s)://host:port")
    return url.rstrip("/")
