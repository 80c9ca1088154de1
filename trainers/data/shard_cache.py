"""A node's bounded copy of prepared shards that live on s3://. A folder needs no copy."""

import os
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa

from trainers.config.storage_location import is_url
from trainers.data.node_cache import NodeCache
from trainers.storage import Storage

PARALLEL_FETCHES = 8


class ShardCache:
    """Fetches shards once per node, ahead of need, and drops the least recently used beyond a bound.

    Processes of one node share the copy: whoever needs a shard first fetches it, and the others wait for it. An evicted
    file stays readable for whoever has it mapped.

    Args:
        storage: The prepared folder.
        key: Hash of the set.
        bound_bytes: Most bytes that the copies of all sets of the node may hold.
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
        """Maps a shard into memory, fetched first where the node has no copy."""
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
        """Starts to fetch a shard in the background."""
        if self._root is not None:
            return
        self._forget_parent()
        self._under_way = {key: future for key, future in self._under_way.items() if not future.done()}
        if name in self._under_way or (self._node.folder / name).exists():
            return
        self._pool = self._pool or ThreadPoolExecutor(max_workers=PARALLEL_FETCHES, thread_name_prefix="shards")
        self._under_way[name] = self._pool.submit(self._fetch, name)

    def _forget_parent(self) -> None:
        """In a forked process: the parent's threads are not here, so nobody would end what they had begun."""
        if self._process != os.getpid():
            self._process, self._pool, self._under_way = os.getpid(), None, {}

    def _fetch(self, name: str) -> None:
        path = self._node.once(name, lambda part: self._storage.download_file(name, part))
        self._node.evict("shard-*.arrow", path, self._bound_bytes)
