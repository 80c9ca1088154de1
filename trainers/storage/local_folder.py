"""Storage in a folder: on a local disk, or on a file system that all nodes mount."""

import errno
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from stat import S_ISREG
from typing import TypeVar
from uuid import uuid4

from trainers.errors import FullDiskError, StorageError
from trainers.storage.base import PART_SUFFIX, Entry, Storage, clean_key, clean_prefix, with_line
from trainers.storage.full_disk import NUMBERS, naming_full_disk
from trainers.storage.retry import Explanation, RetryPolicy

T = TypeVar("T")

# Errors of a network file system while its server restarts.
_TRANSIENT = {errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN}
_NO_LINKS = {errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK}
_ONCE = RetryPolicy(attempts=1)


@dataclass(frozen=True)
class LocalStorage(Storage):
    """A folder, created with its first file. A new file is written in its folder under another name, then renamed.

    `retry` is for transient errors of network file systems. If `confined`, links that lead out of the root are
    refused, since the reader may have more rights than the writers.
    """

    root: str
    retry: RetryPolicy
    confined: bool = False

    def url(self, key: str = "") -> str:
        return str(self._path(key)) if key else self.root

    def sub(self, prefix: str) -> "LocalStorage":
        return replace(self, root=self.url(clean_prefix(prefix)))

    def read_bytes(self, key: str) -> bytes:
        return self._run("read", self._path(key), _read)

    def read_part(self, key: str, start: int, most: int) -> bytes:
        return self._run("read", self._path(key), lambda path: _read(path, start, most))

    def write_bytes(self, key: str, data: bytes) -> None:
        def write(path: Path) -> None:
            with _part_next_to(path) as part:
                _write_synced(part, data)
                _rename(part, path)

        self._run("write", self._path(key), write)

    def append_line(self, key: str, line: str) -> None:
        def append(path: Path) -> None:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a+b") as file:
                file.seek(max(0, file.tell() - 1))
                file.write(with_line(file.read(1), line))

        # Not retried, because a failed append may have written its line.
        self._run("append to", self._path(key), append, _ONCE)

    def entry(self, key: str) -> Entry | None:
        def find(path: Path) -> Entry | None:
            if not path.is_file():
                return None
            stat = path.stat()
            return Entry(key, stat.st_size, stat.st_mtime)

        return self._run("look for", self._path(key), find)

    def list_files(self, prefix: str = "") -> list[Entry]:
        def entries(folder: Path) -> list[Entry]:
            return sorted(self._entries(folder), key=lambda entry: entry.key)

        return self._run("list", self._folder(prefix), entries)

    def list_folders(self, prefix: str = "", *, start: str = "") -> list[str]:
        def folders(folder: Path) -> list[str]:
            try:
                children = [child for child in folder.iterdir() if child.name.startswith(start) and child.is_dir()]
            except (FileNotFoundError, NotADirectoryError):
                return []
            # Partial files of killed writers count, too, so that cleanup finds their folders.
            filled = (child for child in children if any(names for _, names in self._walk(child)))
            return sorted(child.relative_to(self.root).as_posix() for child in filled)

        return self._run("list", self._folder(prefix), folders)

    def delete(self, key: str) -> None:
        self._run("delete", self._path(key), lambda path: path.unlink(missing_ok=True))

    def _delete_all(self, folder: str) -> None:
        self._run("delete", self._path(folder), lambda path: shutil.rmtree(path) if path.exists() else None)

    def create_exclusive(self, key: str, data: bytes) -> bool:
        def create(path: Path) -> bool:
            with _part_next_to(path) as part:
                _write_synced(part, data)
                # Retried with the same part, whose number of links shows that an earlier attempt succeeded.
                return self._run("create", path, lambda path: _link(part, path))

        return self._run("create", self._path(key), create)

    def copy_file(self, source: str, target: str) -> None:
        old = self._path(source)

        def link(new: Path) -> None:
            with _part_next_to(new) as part:
                os.link(old, part)
                # Does nothing if both are names of the same file already.
                part.replace(new)

        self._run(f"link {old} to", self._path(target), link)

    def upload_file(self, local: Path, key: str) -> None:
        self._run(f"copy {local} to", self._path(key), lambda path: _copy(local, path))

    def download_file(self, key: str, local: Path) -> None:
        def copy(path: Path) -> None:
            # A disk that is full here is one of this host, not of the storage.
            with naming_full_disk():
                _copy(path, local)

        self._run(f"copy to {local} from", self._path(key), copy)

    def for_pyarrow(self) -> tuple[str, None]:
        return self.root, None

    def _path(self, key: str) -> Path:
        return self._inside(Path(self.root) / clean_key(key))

    def _folder(self, prefix: str) -> Path:
        return self._inside(Path(self.root) / clean_prefix(prefix))

    def _inside(self, path: Path) -> Path:
        # Not pathlib's resolve, which raises RuntimeError for circular links; opening such a link raises OSError.
        if self.confined and (link := _link_of_another(Path(self.root))) is not None:
            raise StorageError(f"{link} is a link that another user has made: not followed")
        if self.confined and not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(self.root)):
            raise StorageError(f"{path} is a link that leads out of {self.root}, or lies behind one: not followed")
        return path

    def _walk(self, folder: Path) -> Iterator[tuple[str, list[str]]]:
        """Yields the paths of this folder and of all below it, each with the names of its files."""

        def refuse(error: OSError) -> None:
            # Another process may delete a folder during the walk.
            if not isinstance(error, FileNotFoundError | NotADirectoryError):
                raise error

        for parent, _, names in os.walk(folder, onerror=refuse):
            yield parent, names

    def _entries(self, folder: Path) -> Iterator[Entry]:
        for parent, names in self._walk(folder):
            for name in names:
                path = Path(parent) / name
                try:
                    stat = path.stat()
                except FileNotFoundError:
                    continue
                if not name.endswith(PART_SUFFIX):
                    yield Entry(path.relative_to(self.root).as_posix(), stat.st_size, stat.st_mtime)

    def _run(self, action: str, path: Path, call: Callable[[Path], T], retry: RetryPolicy | None = None) -> T:
        return (retry or self.retry).run(lambda: call(path), action=action, url=str(path), explain=_explain)


def _read(path: Path, start: int = 0, most: int = -1) -> bytes:
    """Reads a file; raises OSError at once for a pipe in its place, whose other end may never be opened."""
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(errno.EINVAL, "not a file", str(path))
    with os.fdopen(number, "rb") as file:
        file.seek(start)
        return file.read(most)


def _link_of_another(path: Path) -> Path | None:
    """Returns the first link in a path that belongs to neither this user nor root; None if there is none."""
    links = (part for part in (*reversed(path.parents), path) if part.is_symlink())
    return next((link for link in links if link.lstat().st_uid not in (0, os.getuid())), None)


@contextmanager
def _part_next_to(path: Path) -> Iterator[Path]:
    """Yields the name of a new file in the folder of `path`; the file is deleted at exit if it still exists."""
    part = path.parent / f".{uuid4().hex}{PART_SUFFIX}"
    part.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield part
    finally:
        part.unlink(missing_ok=True)


def _write_synced(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _rename(part: Path, path: Path) -> None:
    part.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _copy(source: Path, target: Path) -> None:
    with _part_next_to(target) as part:
        shutil.copyfile(source, part)
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        _rename(part, target)


def _link(part: Path, path: Path) -> bool:
    try:
        os.link(part, path)
    except FileExistsError:
        # NFS may report "exists" for a link that it has just made, if its response was lost; the link count shows it.
        return part.stat().st_nlink > 1
    except OSError as error:
        if error.errno in _NO_LINKS:
            raise StorageError(
                f"cannot create {path}: its file system has no hard links, without which two writers could create "
                "the same file; use a disk, NFS, Lustre or an s3:// path"
            ) from error
        raise
    return True


def _explain(error: BaseException) -> Explanation | None:
    if not isinstance(error, OSError):
        return None
    # For a copy, the second name is the target.
    named = error.filename2 or error.filename
    cause = f"{error.strerror or error} ({named})" if named else str(error)
    permission = f"permission is denied to user id {os.getuid()}: give it read and write access"
    fixes: dict[int | None, str] = {
        errno.ENOENT: "check that it exists, or choose another storage path",
        errno.EACCES: permission,
        errno.EPERM: permission,
        errno.EROFS: "mount the file system for writing or choose another storage path",
        errno.ENOSPC: f"free some space, as host {socket.gethostname()} sees it, or choose another storage path",
        errno.EDQUOT: "free some of the quota or choose another storage path",
        errno.ENOTDIR: "there is a file where a folder is needed: choose another storage path",
        errno.EISDIR: "there is a folder where a file is needed: choose another key",
    }
    kind = FullDiskError if error.errno in NUMBERS else StorageError
    return Explanation(cause, fixes.get(error.errno, "check the file system"), error.errno in _TRANSIENT, kind)
