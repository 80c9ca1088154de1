"""Caches files that the processes of a node share: the first process that needs a file makes it, others wait."""

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path

import pyarrow as pa

from trainers.config.storage_location import is_url
from trainers.storage import Storage
from trainers.storage.own_folder import locked, make_once, own_temporary_folder

PARALLEL_FETCHES = 8
# Files that no process has used for this long belong to a run that has ended.
UNUSED_S = 3 * 24 * 3600.0


class NodeCache:
    """The node's files for a URL, by a hash of its content, such as a prepared folder and the key of its set."""

    def __init__(self, url: str, key: str, purpose: str = "shards"):
        self._purpose = purpose
        self._name = hashlib.sha256(f"{url} {key}".encode()).hexdigest()[:16]

    @cached_property
    def folder(self) -> Path:
        """The folder of the files, created with the first of them.

        Raises StorageError if the node's parent folder for such files was made by another user.
        """
        return own_temporary_folder(self._purpose) / self._name

    def once(self, name: str, make: Callable[[Path], None]) -> Path:
        """Returns the path of the file or folder `name`; if it does not exist, calls `make` with its path.

        The path exists only when complete. A killed process may leave a partial file under another name.
        """
        self._make_folder()
        return make_once(self.folder / name, make)

    @contextmanager
    def locked(self, name: str) -> Iterator[None]:
        """See `own_folder.locked`."""
        self._make_folder()
        with locked(self.folder / name):
            yield

    def _make_folder(self) -> None:
        if not self.folder.exists():
            self._remove_unused()
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def _remove_unused(self) -> None:
        for folder in self.folder.parent.glob("*"):
            try:
                unused_s = time.time() - max(path.stat().st_mtime for path in (folder, *folder.iterdir()))
            except FileNotFoundError:  # another process of this node has removed it
                continue
            if unused_s > UNUSED_S:
                shutil.rmtree(folder, ignore_errors=True)

    def evict(self, pattern: str, keep: Path, bound_bytes: int) -> None:
        """Deletes the least recently used files beyond `bound_bytes` over all sets of the node; never `keep`."""
        files = []
        for folder in self.folder.parent.iterdir():
            # Another process of this node may remove an unused folder, or evict a file, meanwhile.
            with suppress(FileNotFoundError):
                for path in list(folder.glob(pattern)):
                    with suppress(FileNotFoundError):
                        status = path.stat()
                        files.append((path == keep, status.st_mtime, status.st_size, path))
        used = 0
        for kept, _, size, path in sorted(files, reverse=True):
            used += size
            if used > bound_bytes and not kept:
                path.unlink(missing_ok=True)


class ShardCache:
    """A node's bounded copy of prepared shards in a bucket; shards in a folder are not copied.

    Each shard is downloaded once per node, ahead of need; the least recently used beyond a limit are deleted. Processes
    of one node share the copy: the first that needs a shard downloads it, the others wait. A process can still read an
    evicted file that it has mapped. `bound_bytes` limits the copies of all sets on the node.
    """

    def __init__(self, storage: Storage, key: str, bound_bytes: int):
        self._storage = storage
        self._root = None if is_url(storage.url()) else Path(storage.url())
        self._node = NodeCache(storage.url(), key)
        self._bound_bytes = bound_bytes
        self._process = os.getpid()
        self._pool: ThreadPoolExecutor | None = None
        self._under_way: dict[str, Future[None]] = {}

    def open(self, name: str) -> pa.MemoryMappedFile:
        """Maps a shard into memory, after downloading it if the node has no copy."""
        if self._root is not None:
            return pa.memory_map(str(self._root / name))
        self._forget_parent()
        future = self._under_way.pop(name, None)
        if future is not None:
            future.result()
        path = self._node.folder / name
        while True:
            try:
                os.utime(path)
                return pa.memory_map(str(path))
            except FileNotFoundError:  # not fetched yet, or evicted by another process of this node
                self._fetch(name)

    def prefetch(self, name: str) -> None:
        if self._root is not None:
            return
        self._forget_parent()
        self._under_way = {key: future for key, future in self._under_way.items() if not future.done()}
        if name in self._under_way or (self._node.folder / name).exists():
            return
        self._pool = self._pool or ThreadPoolExecutor(max_workers=PARALLEL_FETCHES, thread_name_prefix="shards")
        self._under_way[name] = self._pool.submit(self._fetch, name)

    def _forget_parent(self) -> None:
        """Resets the pool in a forked process, which has none of the parent's threads to end its downloads."""
        if self._process != os.getpid():
            self._process, self._pool, self._under_way = os.getpid(), None, {}

    def _fetch(self, name: str) -> None:
        path = self._node.once(name, lambda part: self._storage.download_file(name, part))
        self._node.evict("shard-*.arrow", path, self._bound_bytes)
