"""Storage in a bucket of S3 or Google Cloud Storage, or in a container of Azure."""

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, TypeVar
from uuid import uuid4

from trainers.errors import FullDiskError
from trainers.storage.base import PART_SUFFIX, Entry, Storage, clean_key, clean_prefix, in_parallel, with_line
from trainers.storage.full_disk import FIX, NUMBERS, full_disk
from trainers.storage.object_client import Bucket, Timeouts, call
from trainers.storage.object_errors import ErrorKind, ObjectError, explanation_of
from trainers.storage.object_services import ObjectService
from trainers.storage.retry import PROBE_RETRY, Explanation, RetryPolicy

T = TypeVar("T")

_USUAL_TIMEOUTS, _PROBE_TIMEOUTS = Timeouts(connect_s=10.0, read_s=60.0), Timeouts(connect_s=3.0, read_s=10.0)
# Sending a part of a file may take long on a slow connection that several uploads share.
_UPLOAD_TIMEOUTS = Timeouts(connect_s=10.0, read_s=240.0)


@dataclass(frozen=True)
class BucketStorage(Storage):
    """The objects in a bucket below `prefix`, which is a clean key, or "" for the complete bucket."""

    service: ObjectService
    bucket: str
    prefix: str
    retry: RetryPolicy
    timeouts: Timeouts = _USUAL_TIMEOUTS

    def url(self, key: str = "") -> str:
        path = self._object(key) if key else self.prefix
        root = f"{self.service.scheme}{self.bucket}"
        return f"{root}/{path}" if path else root

    def sub(self, prefix: str) -> Self:
        return replace(self, prefix=self._object(prefix) if prefix else self.prefix)

    def read_bytes(self, key: str) -> bytes:
        data: bytes = self._do("read", key, "read")
        return data

    def read_part(self, key: str, start: int, most: int) -> bytes:
        data: bytes = self._do("read", key, "read_part", start, most)
        return data

    def write_bytes(self, key: str, data: bytes) -> None:
        self._do("write", key, "write", data)

    def append_line(self, key: str, line: str) -> None:
        so_far = self.read_bytes(key) if self.exists(key) else b""
        # Only the write is retried, with the same bytes, since a second read might already find the line.
        self.write_bytes(key, so_far + with_line(so_far, line))

    def entry(self, key: str) -> Entry | None:
        found = self._run("look for", key, self._head)
        return self._entry(found[0]) if found is not None else None

    def list_files(self, prefix: str = "") -> list[Entry]:
        below = self._below(prefix)

        def entries() -> list[Entry]:
            return [self._entry(each) for each in _files(self._call("listed", below.rstrip("/")), below)]

        return sorted(self._retry("list", self.url(clean_prefix(prefix)), entries), key=lambda entry: entry.key)

    def list_some(self, keys: Collection[str]) -> dict[str, Entry] | None:
        """See Storage. Lists a bucket from the first of the keys to the last, a thousand objects per request."""
        names = {self._object(key) for key in keys}
        if not names:
            return {}
        first, last = min(names), max(names)
        # obstore lists whole folders, not names with a common prefix.
        folder = os.path.commonprefix([first, last]).rpartition("/")[0]  # noqa: RUF071
        # A listing starts after a name, so it gets `first` without its last character. No part of the name may be "..".
        after = first[:-1].rstrip("/.") or None

        def entries() -> dict[str, Entry] | None:
            try:
                found = self._call("listed", folder, after, last)
            except ObjectError as error:
                if error.kind in (ErrorKind.DENIED, ErrorKind.DENIED_OR_REFUSED, ErrorKind.ODD_NAME):
                    return None
                raise
            return {entry.key: entry for entry in map(self._entry, (each for each in found if each.key in names))}

        return self._retry("list", self.url(), entries)

    def list_folders(self, prefix: str = "", *, start: str = "") -> list[str]:
        below = self._below(prefix)

        def folders() -> list[str]:
            found = self._call("folders", below.rstrip("/"))
            return sorted(self._key(name) for name in found if name.startswith(f"{below}{start}"))

        return self._retry("list", self.url(clean_prefix(prefix)), folders)

    def delete(self, key: str) -> None:
        def delete(name: str) -> None:
            try:
                self._call("delete", name)
            except ObjectError as error:
                if error.kind is not ErrorKind.MISSING:
                    raise

        self._run("delete", key, delete)

    def _delete_all(self, folder: str) -> None:
        in_parallel(lambda entry: self.delete(entry.key), self.list_files(folder))

    def create_exclusive(self, key: str, data: bytes) -> bool:
        creator = uuid4().hex

        def create(name: str) -> bool:
            try:
                self._call("create", name, data, creator)
            except ObjectError as error:
                if error.kind is not ErrorKind.EXISTS:
                    raise
                # The object may exist because an earlier attempt succeeded and only its response was lost.
                found = self._head(name)
                return found is not None and found[1] == creator
            return True

        return self._run("create", key, create)

    def copy_file(self, source: str, target: str) -> None:
        name = self._object(source)
        self._do(f"copy {self.url(source)} to", target, "copy", name, attempts=self.retry.part_attempts)

    def upload_file(self, local: Path, key: str) -> None:
        attempts, timeouts = self.retry.part_attempts, _UPLOAD_TIMEOUTS
        self._do(f"upload {local} to", key, "upload", local, attempts=attempts, timeouts=timeouts)

    def download_file(self, key: str, local: Path) -> None:
        part = local.parent / f".{uuid4().hex}{PART_SUFFIX}"
        local.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._do(f"download to {local} from", key, "download", part, attempts=self.retry.part_attempts)
            part.replace(local)
        finally:
            part.unlink(missing_ok=True)

    def for_pyarrow(self) -> tuple[str, Any]:
        """See Storage. The filesystem finds the credentials itself, so none are pickled with it."""
        # Imported here because pyarrow takes a fifth of a second to load.
        from trainers.storage.pyarrow_filesystem import filesystem_of  # noqa: PLC0415

        return self.url().removeprefix(self.service.scheme), filesystem_of(replace(self, prefix=""), self.bucket)

    def _for_probe(self) -> Storage:
        return replace(self, timeouts=_PROBE_TIMEOUTS, retry=PROBE_RETRY)

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

    def _do(self, action: str, key: str, method: str, *arguments: Any, **options: Any) -> Any:
        """Calls a method of ObjectClient with the name of `key` in the bucket; `options` replace fields of Bucket."""
        return self._run(action, key, lambda name: self._call(method, name, *arguments, **options))

    def _call(self, method: str, *arguments: Any, **options: Any) -> Any:
        return call(replace(Bucket(self.service, self.bucket, self.timeouts), **options), method, *arguments)

    def _head(self, name: str) -> tuple[Entry, str | None] | None:
        """Returns an object's entry and creator; None if there is no such object."""
        try:
            found: tuple[Entry, str | None] = self._call("head", name)
        except ObjectError as error:
            if error.kind is ErrorKind.MISSING:
                return None
            raise
        return found

    def _entry(self, found: Entry) -> Entry:
        return replace(found, key=self._key(found.key))

    def _explain(self, error: BaseException) -> Explanation | None:
        if isinstance(error, ObjectError):
            return explanation_of(error, self.service, self.bucket)
        message = str(error).partition("\n")[0]
        if isinstance(error, ConnectionError):
            return Explanation(message, "check the memory of this node", transient=True)
        if isinstance(error, OSError):
            if error.errno in NUMBERS:
                return Explanation(full_disk(message), FIX, kind=FullDiskError)
            return Explanation(message, "check the file and its disk")
        return None


def _files(found: list[Entry], below: str) -> list[Entry]:
    """Returns the files in a listing.

    Consoles mark a folder by an empty object whose name ends with a slash; obstore removes the slash.
    """
    folders = {each.key[:end] for each in found for end in range(len(each.key)) if each.key[end] == "/"}
    return [
        each
        for each in found
        if each.key.startswith(below)
        and not each.key.endswith(("/", PART_SUFFIX))
        and not (each.size_bytes == 0 and each.key in folders)
    ]
