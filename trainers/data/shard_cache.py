"""A node's bounded copy of prepared shards that live on s3://. A folder needs no copy."""

import hashlib
import os
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa

from trainers.config.storage_location import is_url
from trainers.storage import Storage


class ShardCache:
    """Fetches shards once per node, ahead of need, and drops the least recently used beyond a bound.

    Processes of one node share the folder: a shard appears in it by renaming, and an evicted file stays readable for
    whoever has it mapped.
    """

    def __init__(self, storage: Storage, key: str, bound_bytes: int):
        """Names the folder; makes it at the first fetch.

        Args:
            storage: The prepared folder.
            key: Hash of the set, which names the copy's folder.
            bound_bytes: Most bytes that the copy may hold.
        """
        self._storage = storage
        self._root = None if is_url(storage.url()) else Path(storage.url())
        owner = hashlib.sha256(f"{storage.url()} {key}".encode()).hexdigest()[:16]
        self._folder = Path(tempfile.gettempdir()) / f"rayscribe-shards-{os.getuid()}" / owner
        self._bound_bytes = bound_bytes
        self._process = os.getpid()
        self._pool: ThreadPoolExecutor | None = None
        self._under_way: dict[str, Future[Path]] = {}

    def open(self, name: str) -> pa.MemoryMappedFile:
        """Maps a shard into memory, fetched first where the node has no copy."""
        if self._root is not None:
            return pa.memory_map(str(self._root / name))
        self._forget_parent()
        future = self._under_way.pop(name, None)
        if future is not None:
            future.result()
        while True:
            try:
                os.utime(self._folder / name)
                return pa.memory_map(str(self._folder / name))
            except FileNotFoundError:  # not fetched yet, or evicted by another process of this node
                self._fetch(name)

    def prefetch(self, name: str) -> None:
        """Starts to fetch a shard in the background."""
        if self._root is not None:
            return
        self._forget_parent()
        self._under_way = {key: future for key, future in self._under_way.items() if not future.done()}
        if name in self._under_way or (self._folder / name).exists():
            return
        self._pool = self._pool or ThreadPoolExecutor(max_workers=2, thread_name_prefix="shards")
        self._under_way[name] = self._pool.submit(self._fetch, name)

    def _forget_parent(self) -> None:
        """In a forked process: the parent's threads are not here, so nobody would end what they had begun."""
        if self._process != os.getpid():
            self._process, self._pool, self._under_way = os.getpid(), None, {}

    def _fetch(self, name: str) -> Path:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = self._folder / name
        self._storage.download_file(name, path)
        self._evict(keep=name)
        return path

    def _evict(self, keep: str) -> None:
        # Sorted first, the shard that has just arrived stays; if another process has evicted it, `open` sees that.
        files = sorted(
            ((path.name == keep, stat.st_mtime, stat.st_size, path) for path, stat in self._stats()),
            reverse=True,
        )
        used = 0
        for kept, _, size, path in files:
            used += size
            if used > self._bound_bytes and not kept:
                path.unlink(missing_ok=True)

    def _stats(self) -> list[tuple[Path, os.stat_result]]:
        found = []
        for path in self._folder.glob("shard-*.arrow"):
            try:
                found.append((path, path.stat()))
            except FileNotFoundError:  # another process of this node evicted it meanwhile
                continue
        return found
