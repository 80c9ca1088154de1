"""Storage in a bucket of Google Cloud Storage, or in a container of Azure."""

import os
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from trainers.errors import FullDiskError, NoAccessError, NoBucketError
from trainers.storage.base import PART_SUFFIX, Entry, Storage, clean_prefix
from trainers.storage.bucket import BucketStorage
from trainers.storage.full_disk import FIX, NUMBERS, full_disk
from trainers.storage.objects.forked_client import call
from trainers.storage.objects.object_client import Bucket, ErrorKind, ObjectError, StoredObject, Timeouts
from trainers.storage.objects.object_services import ObjectService
from trainers.storage.retry import PROBE_RETRY, Explanation

_USUAL_TIMEOUTS, _PROBE_TIMEOUTS = Timeouts(connect_s=10.0, read_s=60.0), Timeouts(connect_s=3.0, read_s=10.0)


@dataclass(frozen=True)
class ObjectStorage(BucketStorage):
    """Objects of a service's bucket."""

    service: ObjectService
    timeouts: Timeouts = _USUAL_TIMEOUTS

    @property
    def scheme(self) -> str:  # type: ignore[override]
        return self.service.scheme

    def read_bytes(self, key: str) -> bytes:
        data: bytes = self._run("read", key, lambda name: self._call("read", name))
        return data

    def read_part(self, key: str, start: int, most: int) -> bytes:
        data: bytes = self._run("read", key, lambda name: self._call("read_part", name, start, most))
        return data

    def write_bytes(self, key: str, data: bytes) -> None:
        self._run("write", key, lambda name: self._call("write", name, data))

    def entry(self, key: str) -> Entry | None:
        found = self._run("look for", key, self._head)
        return self._entry(found) if found is not None else None

    def list_files(self, prefix: str = "") -> list[Entry]:
        below = self._below(prefix)

        def entries() -> list[Entry]:
            return [self._entry(each) for each in _files(self._call("listed", below.rstrip("/")), below)]

        return sorted(self._retry("list", self.url(clean_prefix(prefix)), entries), key=lambda entry: entry.key)

    def list_some(self, keys: Collection[str]) -> dict[str, Entry] | None:
        """See Storage. Lists a bucket from the first of the keys to the last: a thousand objects per request."""
        names = {self._object(key) for key in keys}
        if not names:
            return {}
        first, last = min(names), max(names)
        # A prefix is made of characters in S3, but of folders here.
        folder = os.path.commonprefix([first, last]).rpartition("/")[0]  # noqa: RUF071
        # The listing starts after a name: `first` less one character precedes it. No part of it is "..".
        after = first[:-1].rstrip("/.") or None

        def entries() -> dict[str, Entry] | None:
            try:
                found = self._call("listed", folder, after, last)
            except ObjectError as error:
                if error.kind in (ErrorKind.DENIED, ErrorKind.ODD_NAME):
                    return None
                raise
            return {self._key(each.name): self._entry(each) for each in found if each.name in names}

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
                return found is not None and found.creator == creator
            return True

        return self._run("create", key, create)

    def copy_file(self, source: str, target: str) -> None:
        original = self._object(source)
        self._run(f"copy {self.url(source)} to", target, lambda name: self._call("copy", original, name))

    def upload_file(self, local: Path, key: str) -> None:
        self._run(f"upload {local} to", key, lambda name: self._call_in_parts("upload", local, name))

    def _download(self, name: str, part: Path) -> None:
        self._call_in_parts("download", name, part)

    def _for_probe(self) -> Storage:
        return replace(self, timeouts=_PROBE_TIMEOUTS, retry=PROBE_RETRY)

    def _call(self, method: str, *arguments: Any) -> Any:
        return call(Bucket(self.service, self.bucket, self.timeouts), method, *arguments)

    def _call_in_parts(self, method: str, *arguments: Any) -> Any:
        """Calls a method for files that may be sent in parts, each of which is retried."""
        bucket = Bucket(self.service, self.bucket, self.timeouts, self.retry.part_attempts)
        return call(bucket, method, *arguments)

    def _head(self, name: str) -> StoredObject | None:
        try:
            found: StoredObject = self._call("head", name)
        except ObjectError as error:
            if error.kind is ErrorKind.MISSING:
                return None
            raise
        return found

    def _entry(self, found: StoredObject) -> Entry:
        return Entry(self._key(found.name), found.size_bytes, found.modified_s, found.etag)

    def _explain(self, error: BaseException) -> Explanation | None:
        if isinstance(error, ObjectError):
            return _explanation(error, self.service, self.bucket)
        message = str(error).partition("\n")[0]
        if isinstance(error, ConnectionError):
            return Explanation(message, "check the memory of this node", transient=True)
        if isinstance(error, OSError):
            if error.errno in NUMBERS:
                return Explanation(full_disk(message), FIX, kind=FullDiskError)
            return Explanation(message, "check the file and its disk")
        return None


def _files(found: list[StoredObject], below: str) -> list[StoredObject]:
    """Returns the files in a listing, which is sorted.

    Consoles mark a folder by an empty object whose name ends with a slash, which obstore removes.
    """
    folders = {each.name[:end] for each in found for end in range(len(each.name)) if each.name[end] == "/"}
    return [
        each
        for each in found
        if each.name.startswith(below)
        and not each.name.endswith(PART_SUFFIX)
        and not (each.size_bytes == 0 and each.name in folders)
    ]


def _explanation(error: ObjectError, service: ObjectService, bucket: str) -> Explanation:
    endpoint, said = service.endpoint, error.message
    connect = f"cannot connect to endpoint {endpoint} ({said})"
    explanations = {
        ErrorKind.MISSING: Explanation("there is no such object", f"check the key, and that {endpoint} is the service"),
        ErrorKind.NO_BUCKET: Explanation(
            f"the bucket {bucket!r} does not exist",
            f"create it or correct the storage path (endpoint: {endpoint})",
            kind=NoBucketError,
        ),
        ErrorKind.DENIED: Explanation(
            f"permission denied ({said})", service.allow.format(bucket=bucket), kind=NoAccessError
        ),
        ErrorKind.ODD_NAME: Explanation(
            f"an object there has a name that is no path ({said})",
            "move it to another place, by the tools of the service",
        ),
        ErrorKind.REFUSED: Explanation(f"the credentials are refused ({said})", service.set_credentials),
        ErrorKind.NO_CREDENTIALS: Explanation(f"no credentials ({said})", service.set_credentials),
        ErrorKind.NO_IDENTITY_SERVICE: Explanation(f"no credentials ({said})", service.set_credentials, transient=True),
        ErrorKind.UNREACHABLE: Explanation(connect, service.check_endpoint, transient=True),
        ErrorKind.BROKEN: Explanation(
            f"the connection to endpoint {endpoint} broke ({said})", "check the network and the service", transient=True
        ),
        ErrorKind.BUSY: Explanation(
            f"the service responds with {said}", f"check the service at {endpoint}", transient=True
        ),
    }
    other = Explanation(f"the service responds with {said}", "check the storage path and the service")
    return explanations.get(error.kind, other)
