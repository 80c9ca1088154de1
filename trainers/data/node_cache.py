"""Files that the processes of a node share on its disk, each made once: by the first that asks, while others wait."""

import fcntl
import hashlib
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

from trainers.storage.own_folder import own_temporary_folder

# What no process has asked for in this time belongs to a run that has ended.
UNUSED_S = 3 * 24 * 3600.0


class NodeCache:
    """The node's files of one prepared folder.

    Args:
        url: The prepared folder's URL.
        key: Hash of the set.
    """

    def __init__(self, url: str, key: str):
        self._name = hashlib.sha256(f"{url} {key}".encode()).hexdigest()[:16]

    @cached_property
    def folder(self) -> Path:
        """Where they are; made with the first of them.

        Raises:
            StorageError: the node's folder of all such files was made by another user.
        """
        return own_temporary_folder("shards") / self._name

    def once(self, name: str, make: Callable[[Path], None]) -> Path:
        """The file `name`, made by `make` where the node has none; it is there only when it is complete.

        Args:
            name: A file name.
            make: Writes the file whose path it is given.
        """
        path = self.folder / name
        if not path.exists():
            with self._locked(name):
                if not path.exists():
                    part = self.folder / f".{name}.part"
                    make(part)
                    part.replace(path)
        return path

    @contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        """Keeps other threads and processes of the node out; the system frees the lock of one that dies."""
        if not self.folder.exists():
            self._remove_unused()
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with (self.folder / f".{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _remove_unused(self) -> None:
        for folder in self.folder.parent.glob("*"):
            try:
                unused_s = time.time() - max(path.stat().st_mtime for path in (folder, *folder.iterdir()))
            except FileNotFoundError:  # another process of this node has removed it
                continue
            if unused_s > UNUSED_S:
                shutil.rmtree(folder, ignore_errors=True)

    def evict(self, pattern: str, keep: Path, bound_bytes: int) -> None:
        """Drops the least recently used files beyond a bound, which holds for the files of all sets of the node.

        Args:
            pattern: Names of the files that may be dropped.
            keep: A file that stays.
            bound_bytes: The most bytes that such files may hold.
        """
        files = []
        for path in self.folder.parent.glob(f"*/{pattern}"):
            try:
                status = path.stat()
            except FileNotFoundError:  # another process of this node evicted it meanwhile
                continue
            files.append((path == keep, status.st_mtime, status.st_size, path))
        used = 0
        for kept, _, size, path in sorted(files, reverse=True):
            used += size
            if used > bound_bytes and not kept:
                path.unlink(missing_ok=True)
