"""Defines the interface of a storage: files under keys, in a folder or a bucket."""

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from trainers.errors import StorageError

T = TypeVar("T")

# The suffix of a file that is still being written; it is never listed, uploaded or read.
PART_SUFFIX = ".rayscribe-part"
_PARALLEL_FILES = 8
_HASHED_BYTES = 2**20


@dataclass(frozen=True)
class Entry:
    """A stored file; `key` is relative to the root, and `etag` identifies the content in a bucket ("" in a folder)."""

    key: str
    size_bytes: int
    modified_s: float
    etag: str = ""


class Storage(ABC):
    """Files under keys, below one root.

    A key is a relative POSIX path: `checkpoints/7/model.safetensors`. A prefix is the key of a folder;
    "" is the root itself. A folder exists as long as a file is in it. A storage may be pickled and
    shared by threads. Every method raises StorageError, which names the URL, the cause and the fix.
    """

    @abstractmethod
    def url(self, key: str = "") -> str:
        """Returns the absolute path or URL of `key`, or of the root if `key` is empty."""

    @abstractmethod
    def sub(self, prefix: str) -> "Storage":
        """Returns the storage whose root is the folder `prefix` of this one."""

    @abstractmethod
    def read_bytes(self, key: str) -> bytes:
        """Returns the content of `key`."""

    @abstractmethod
    def read_part(self, key: str, start: int, most: int) -> bytes:
        """Returns at most `most` bytes of `key` from byte `start` on; b"" if `start` is beyond its end."""

    def read_small(self, key: str, most: int) -> bytes:
        """Returns the content of a file; raises StorageError if another writer has made it larger than `most` bytes."""
        content = self.read_part(key, 0, most + 1)
        if len(content) > most:
            raise StorageError(f"{self.url(key)} has more than {most} bytes, so it is not what was written there")
        return content

    @abstractmethod
    def write_bytes(self, key: str, data: bytes) -> None:
        """Replaces the content of `key` by `data`, atomically: a reader gets either the old or the new content."""

    @abstractmethod
    def append_line(self, key: str, line: str) -> None:
        """Appends `line` and a line feed to `key`, which need not exist.

        Only for one writer at a time, since in a bucket the object is read and rewritten, so that one of two writers'
        lines would be lost. An incomplete line from a crash remains a separate line.
        """

    def exists(self, key: str) -> bool:
        """Returns True if there is a file with this key; a folder does not count."""
        return self.entry(key) is not None

    @abstractmethod
    def entry(self, key: str) -> Entry | None:
        """Returns size and time of `key`; None if there is no such file."""

    @abstractmethod
    def list_files(self, prefix: str = "") -> list[Entry]:
        """Returns all files below the folder `prefix`, at any depth, sorted by key; keys are relative to the root."""

    def list_some(self, keys: Collection[str]) -> dict[str, Entry] | None:
        """Returns the existing files among `keys`, by key; None if the bucket cannot be listed."""
        return {key: entry for key in keys if (entry := self.entry(key)) is not None}

    @abstractmethod
    def list_folders(self, prefix: str = "", *, start: str = "") -> list[str]:
        """Returns the keys of the folders directly below `prefix` that contain a file at any depth, sorted.

        Only names that begin with `start` are examined.
        """

    @abstractmethod
    def delete(self, key: str) -> None:
        """Deletes one file, if it exists."""

    def delete_tree(self, prefix: str, *, first: str | None = None) -> None:
        """Deletes the folder `prefix`, if it exists, with all its content; never the root.

        `first`, such as a manifest, is deleted before all others, so that an interrupted deletion leaves nothing that
        looks complete.
        """
        folder = clean_key(prefix)
        if first is not None:
            self.delete(f"{folder}/{clean_key(first)}")
        self._delete_all(folder)

    @abstractmethod
    def _delete_all(self, folder: str) -> None:
        """Deletes everything below the clean key `folder`, in any order."""

    @abstractmethod
    def create_exclusive(self, key: str, data: bytes) -> bool:
        """Writes `data` and returns True, or returns False if `key` exists; of concurrent callers, one gets True.

        The file is never visible incomplete.
        """

    @abstractmethod
    def copy_file(self, source: str, target: str) -> None:
        """Makes the file `source` available as `target`, too, atomically, and without a download or upload.

        In a folder, this makes a hard link, which takes no space, so neither file may be changed in place afterwards.
        In a bucket, the service copies.
        """

    @abstractmethod
    def upload_file(self, local: Path, key: str) -> None:
        """Uploads the file `local` to `key`, which is visible only when complete."""

    @abstractmethod
    def download_file(self, key: str, local: Path) -> None:
        """Downloads `key` to the file `local`, which is visible only when complete; creates its folder."""

    def upload_folder(self, local: Path, prefix: str, *, last: str | None = None) -> None:
        """Uploads all files below `local` to `prefix`, several in parallel; links to files are followed.

        Existing files that are not in `local` are kept. `last`, such as MANIFEST.json, is uploaded after all others. An
        existing `last` is deleted before anything is written, so that it is visible only if the folder is complete.
        """
        keys = _files_below(local)
        if last is not None and last not in keys:
            raise StorageError(f"cannot upload {local} to {self.url(prefix)}: it has no file {last!r}; write it first")
        target = self.sub(prefix)
        if last is not None:
            target.delete(last)
        in_parallel(lambda key: target.upload_file(local / key, key), (key for key in keys if key != last))
        if last is not None:
            target.upload_file(local / last, last)

    def download_folder(self, prefix: str, local: Path) -> None:
        """Downloads all files below `prefix` into the folder `local`, several in parallel."""
        source = self.sub(prefix)
        # Other tools may have written keys such as a/../../b, so keys are checked before they become local paths.
        keys = [clean_key(entry.key) for entry in source.list_files()]
        if not keys:
            raise StorageError(f"cannot download {source.url()}: no file is there; check the name of the folder")
        in_parallel(lambda key: source.download_file(key, local / key), keys)

    def check_writable(self) -> None:
        """Writes, reads, lists and deletes a small file, to find errors within seconds that would stop a run."""
        storage = self._for_probe()
        folder = f".rayscribe-probe-{uuid4().hex}"
        try:
            _probe(storage, f"{folder}/probe")
        except StorageError:
            with suppress(StorageError):
                storage.delete_tree(folder)
            raise
        storage.delete_tree(folder)

    def _for_probe(self) -> "Storage":
        """Returns this storage with shorter timeouts."""
        return self

    @abstractmethod
    def for_pyarrow(self) -> tuple[str, Any]:
        """Returns (storage_path, storage_filesystem) for Ray's RunConfig; the filesystem is None for a folder."""


def clean_key(key: str) -> str:
    """Returns `key`, without one trailing slash, if it is a relative POSIX path that stays below the root.

    Raises:
        StorageError: It is empty or absolute, has an empty, "." or ".." part, a NUL, invalid Unicode or PART_SUFFIX.
    """
    cleaned = key.removesuffix("/")
    parts = cleaned.split("/")
    if key.startswith("/") or any(part in ("", ".", "..") for part in parts):
        raise StorageError(f"storage key {key!r} is not a path below the root: give one like folder/file, without '..'")
    if "\0" in key or key.endswith(PART_SUFFIX):
        raise StorageError(f"storage key {key!r} has a NUL in it or ends with {PART_SUFFIX}: give another name")
    try:
        key.encode()
    except UnicodeEncodeError as error:
        raise StorageError(f"storage key {key!r} is not valid Unicode: rename the file") from error
    return cleaned


def clean_prefix(prefix: str) -> str:
    """Checks the key of a folder as `clean_key` does; accepts "", which is the root."""
    return clean_key(prefix) if prefix else ""


def with_line(content_so_far: bytes, line: str) -> bytes:
    """Returns the bytes to append `line` to a file that ends with `content_so_far`.

    Raises:
        StorageError: `line` contains a line feed.
    """
    if "\n" in line:
        raise StorageError(f"cannot append {line[:80]!r}: it is more than one line; append each line separately")
    # A crash may have left an incomplete line, which the new line must not continue.
    separator = b"\n" if content_so_far and not content_so_far.endswith(b"\n") else b""
    return separator + line.encode() + b"\n"


def in_parallel(action: Callable[[T], None], items: Iterable[T], *, threads: int = _PARALLEL_FILES) -> None:
    """Calls `action` for each item, a few in parallel; raises the first error, after which no new call starts."""
    with ThreadPoolExecutor(threads) as pool:
        # If an error ends this loop, calls that have not started are canceled.
        for _ in pool.map(action, items):
            pass


def sha256_of(path: str | Path) -> str:
    """Returns the SHA-256 of a local file, as 64 hexadecimal digits; reads in blocks.

    hashlib.file_digest is not used, since for small files it takes half of its time to clear its buffer.

    Raises:
        StorageError: The file cannot be read.
    """
    try:
        digest = hashlib.sha256()
        with Path(path).open("rb", buffering=0) as file:
            while block := file.read(_HASHED_BYTES):
                digest.update(block)
        return digest.hexdigest()
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}; check that it is a file you may read") from error


def _files_below(folder: Path) -> list[str]:
    if not folder.is_dir():
        raise StorageError(f"cannot upload {folder}: it is not a folder; check its name")
    keys = []
    for parent, _, names in os.walk(folder):
        relative = Path(parent).relative_to(folder)
        keys += [(relative / name).as_posix() for name in names if not name.endswith(PART_SUFFIX)]
    return sorted(keys)


def _probe(storage: Storage, key: str) -> None:
    data = uuid4().hex.encode()
    storage.create_exclusive(key, data)
    if storage.read_bytes(key) != data:
        raise StorageError(f"cannot trust {storage.url(key)}: the bytes read differ from those written; check it")
    if key not in [entry.key for entry in storage.list_files(key.partition("/")[0])]:
        raise StorageError(f"cannot trust {storage.url(key)}: a file just written is not listed; check the service")
    if storage.create_exclusive(key, b"a second creation"):
        raise StorageError(
            f"cannot use {storage.url()}: two writers could create the same file there; "
            "use a service that honors the header If-None-Match"
        )
