"""Storage: files under keys, in a folder or a bucket."""

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
    """One file that is stored, by its key below the root; `etag` is a bucket's mark of its content, "" in a folder."""

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
        """The absolute path, or URL, of `key`, or of the root."""

    @abstractmethod
    def sub(self, prefix: str) -> "Storage":
        """The storage whose root is the folder `prefix` of this one."""

    @abstractmethod
    def read_bytes(self, key: str) -> bytes:
        """The content of `key`."""

    def read_one_of_many(self, key: str) -> bytes:
        """Like read_bytes, with less computing where many small files are read by several threads."""
        return self.read_bytes(key)

    @abstractmethod
    def read_part(self, key: str, start: int, most: int) -> bytes:
        """At most `most` bytes of `key` from byte `start` on; b"" beyond its end."""

    def read_small(self, key: str, most: int) -> bytes:
        """The content of a file that has at most `most` bytes, however large another writer has made it."""
        content = self.read_part(key, 0, most + 1)
        if len(content) > most:
            raise StorageError(f"{self.url(key)} has more than {most} bytes, so it is not what was written there")
        return content

    @abstractmethod
    def write_bytes(self, key: str, data: bytes) -> None:
        """Makes `data` the content of `key`: at any time a reader gets all of the old content or all of the new."""

    @abstractmethod
    def append_line(self, key: str, line: str) -> None:
        """Adds `line` and a line feed to `key`, which need not be there yet.

        For one writer at a time: in a bucket the object is read and written again, so with two writers one line
        would be lost. A line that a crash cut short stays a line of its own.
        """

    def exists(self, key: str) -> bool:
        """Whether a file has this key; a folder does not count."""
        return self.entry(key) is not None

    @abstractmethod
    def entry(self, key: str) -> Entry | None:
        """Size and time of `key`; None where there is no such file."""

    @abstractmethod
    def list_files(self, prefix: str = "") -> list[Entry]:
        """All files below the folder `prefix`, at any depth, sorted by key; keys are relative to the root."""

    def list_some(self, keys: Collection[str]) -> dict[str, Entry] | None:
        """Those of the files `keys` that are there, by key; None where a bucket may not be listed."""
        return {key: entry for key in keys if (entry := self.entry(key)) is not None}

    @abstractmethod
    def list_folders(self, prefix: str = "", *, start: str = "") -> list[str]:
        """The keys of the folders right below `prefix` that have a file somewhere in them, sorted.

        Names that do not begin with `start` are not looked at.
        """

    @abstractmethod
    def delete(self, key: str) -> None:
        """Deletes one file; one that is not there is no error."""

    def delete_tree(self, prefix: str, *, first: str | None = None) -> None:
        """Deletes the folder `prefix`, never the root, with all that is in it; one that is not there is no error.

        `first` is deleted before all others, such as a manifest, so that a deletion cut short leaves nothing that looks
        complete.
        """
        folder = clean_key(prefix)
        if first is not None:
            self.delete(f"{folder}/{clean_key(first)}")
        self._delete_all(folder)

    @abstractmethod
    def _delete_all(self, folder: str) -> None:
        """Deletes what is below the clean key `folder`, in any order."""

    @abstractmethod
    def create_exclusive(self, key: str, data: bytes) -> bool:
        """Writes `data` unless `key` is there already; of callers that race, exactly one gets True.

        The file is never visible half-written.
        """

    @abstractmethod
    def copy_file(self, source: str, target: str) -> None:
        """Makes the file `source` visible under `target` too, complete at any time; no byte is sent through here.

        In a folder it is a hard link, which takes no space: neither file may be written in place from then on. In a
        bucket the service copies.
        """

    @abstractmethod
    def upload_file(self, local: Path, key: str) -> None:
        """Stores the file `local` under `key`, which is visible only when it is complete."""

    @abstractmethod
    def download_file(self, key: str, local: Path) -> None:
        """Copies `key` to the file `local`, which is visible only when it is complete; its folder is made."""

    def upload_folder(self, local: Path, prefix: str, *, last: str | None = None) -> None:
        """Stores all files below `local` under `prefix`, several at a time; links to files are followed.

        Files that are there already and not in `local` stay. `last`, such as MANIFEST.json, is stored after all others.
        An older one is deleted before anything is written, so where it is visible, so is all of the folder.
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
        """Copies all files below `prefix` into the folder `local`, several at a time."""
        source = self.sub(prefix)
        # A bucket may hold keys like a/../../b from other tools: cleaned before any becomes a path here.
        keys = [clean_key(entry.key) for entry in source.list_files()]
        if not keys:
            raise StorageError(f"cannot download {source.url()}: no file is there; check the name of the folder")
        in_parallel(lambda key: source.download_file(key, local / key), keys)

    def check_writable(self) -> None:
        """Writes, reads, lists and deletes a small file, to find within seconds what would stop a run."""
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
        """The same storage with shorter timeouts."""
        return self

    @abstractmethod
    def for_pyarrow(self) -> tuple[str, Any]:
        """What Ray's RunConfig takes as (storage_path, storage_filesystem); no filesystem for a folder."""


def clean_key(key: str) -> str:
    """Returns `key`, less one closing slash, if it is a relative POSIX path that stays below the root.

    Raises:
        StorageError: It is empty or absolute, or has an empty, "." or ".." part, or a name no file may have.
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
    """Like clean_key, for a folder, where "" is the root."""
    return clean_key(prefix) if prefix else ""


def with_line(content_so_far: bytes, line: str) -> bytes:
    """The bytes that add `line` to a file that ends with `content_so_far`.

    Raises:
        StorageError: `line` has a line feed in it.
    """
    if "\n" in line:
        raise StorageError(f"cannot append {line[:80]!r}: it is more than one line; append each by itself")
    # A crash may have left a line without its end; the new line must not continue it.
    separator = b"\n" if content_so_far and not content_so_far.endswith(b"\n") else b""
    return separator + line.encode() + b"\n"


def in_parallel(action: Callable[[T], None], items: Iterable[T]) -> None:
    """Does `action` for each item, a few at a time; after a failure no new one starts, and it is raised."""
    with ThreadPoolExecutor(_PARALLEL_FILES) as pool:
        # What has not started is cancelled where this ends early.
        for _ in pool.map(action, items):
            pass


def sha256_of(path: str | Path) -> str:
    """The SHA-256 of a local file, as 64 hexadecimal digits, read in blocks.

    Of small files, hashlib.file_digest takes half of its time to clear its buffer.

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
        raise StorageError(f"cannot trust {storage.url(key)}: it reads back other bytes than were written; check it")
    if key not in [entry.key for entry in storage.list_files(key.partition("/")[0])]:
        raise StorageError(f"cannot trust {storage.url(key)}: a file just written is not listed; check the service")
    if storage.create_exclusive(key, b"a second creation"):
        raise StorageError(
            f"cannot use {storage.url()}: two could create the same file there; "
            "use a service that honors the header If-None-Match"
        )
