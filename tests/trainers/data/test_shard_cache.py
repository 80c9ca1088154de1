import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from trainers.config.storage_location import StorageOptions
from trainers.data.node_cache import UNUSED_S, NodeCache, ShardCache
from trainers.storage import Storage, open_storage

SIZE_BYTES = 1000
NAMES = [f"shard-{number:05d}.arrow" for number in range(6)]


@pytest.fixture
def bucket(s3_bucket: str, s3_endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Storage:
    """Six files of a thousand bytes on S3; the node's temporary folder is empty."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    storage = open_storage(f"{s3_bucket}/set", StorageOptions(s3_endpoint))
    for number, name in enumerate(NAMES):
        storage.write_bytes(name, bytes([number]) * SIZE_BYTES)
    return storage


def held(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("shard-*.arrow"))


def content(file: pa.MemoryMappedFile) -> set[int]:
    file.seek(0)
    data = file.read()
    assert len(data) == SIZE_BYTES
    return set(data)


@pytest.mark.parametrize("shards", [0, 1, 2, 4])
def test_the_bound_is_kept_but_for_the_shard_in_use(bucket: Storage, tmp_path: Path, shards: int) -> None:
    cache = ShardCache(bucket, "key", shards * SIZE_BYTES + 1)
    for number, name in [*enumerate(NAMES)] * 2:
        assert content(cache.open(name)) == {number}
        assert name in held(tmp_path)
        assert len(held(tmp_path)) <= max(shards, 1)


def test_the_least_recently_used_goes_first(bucket: Storage, tmp_path: Path) -> None:
    cache = ShardCache(bucket, "key", 2 * SIZE_BYTES)
    cache.open(NAMES[0])
    cache.open(NAMES[1])
    for path in tmp_path.rglob("shard-*.arrow"):
        os.utime(path, (1, 1))
    cache.open(NAMES[0])
    cache.open(NAMES[2])
    assert held(tmp_path) == [NAMES[0], NAMES[2]]


@pytest.mark.integration
def test_an_evicted_shard_stays_readable_where_it_is_open(bucket: Storage, tmp_path: Path) -> None:
    cache = ShardCache(bucket, "key", SIZE_BYTES)
    first = cache.open(NAMES[0])
    cache.open(NAMES[1])
    assert held(tmp_path) == [NAMES[1]]
    assert content(first) == {0}
    assert content(cache.open(NAMES[0])) == {0}


def test_what_was_fetched_ahead_opens_without_the_bucket(bucket: Storage, tmp_path: Path) -> None:
    cache = ShardCache(bucket, "key", 10 * SIZE_BYTES)
    for name in (*NAMES[:3], NAMES[0]):
        cache.prefetch(name)
    for number, name in enumerate(NAMES[:3]):
        assert content(cache.open(name)) == {number}
    for name in NAMES:
        bucket.delete(name)
    assert content(cache.open(NAMES[1])) == {1}
    assert held(tmp_path) == NAMES[:3]


def test_fetching_ahead_beyond_the_bound_still_gives_every_shard(bucket: Storage) -> None:
    cache = ShardCache(bucket, "key", SIZE_BYTES)
    for name in NAMES:
        cache.prefetch(name)
    assert [content(cache.open(name)) for name in NAMES] == [{number} for number in range(6)]


def test_processes_of_a_node_share_one_copy(bucket: Storage) -> None:
    ShardCache(bucket, "key", 10 * SIZE_BYTES).open(NAMES[0])
    bucket.delete(NAMES[0])
    assert content(ShardCache(bucket, "key", 10 * SIZE_BYTES).open(NAMES[0])) == {0}


def test_sets_of_one_node_do_not_mix(bucket: Storage, s3_bucket: str, s3_endpoint: str) -> None:
    other = open_storage(f"{s3_bucket}/other", StorageOptions(s3_endpoint))
    other.write_bytes(NAMES[0], b"\x09" * SIZE_BYTES)
    assert content(ShardCache(bucket, "key", 10**6).open(NAMES[0])) == {0}
    assert content(ShardCache(other, "key", 10**6).open(NAMES[0])) == {9}


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.integration
def test_a_shard_that_another_process_evicts_at_once_is_fetched_again(
    bucket: Storage, ahead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    evicted: list[str] = []
    once = NodeCache.once

    def evicting(self: NodeCache, name: str, make: Callable[[Path], None]) -> Path:
        path = once(self, name, make)
        if not evicted:
            evicted.append(name)
            path.unlink()
        return path

    monkeypatch.setattr(NodeCache, "once", evicting)
    cache = ShardCache(bucket, "key", SIZE_BYTES)
    if ahead:
        cache.prefetch(NAMES[0])
    assert content(cache.open(NAMES[0])) == {0}
    assert evicted == [NAMES[0]]


@dataclass
class Slow:
    """A bucket whose files arrive only when they are let through, and that counts them."""

    storage: Storage
    let_through: threading.Event = field(default_factory=threading.Event)
    asked: threading.Event = field(default_factory=threading.Event)
    fetched: list[str] = field(default_factory=list)

    def url(self) -> str:
        return self.storage.url()

    def download_file(self, key: str, local: Path) -> None:
        self.fetched.append(key)
        self.asked.set()
        self.let_through.wait(60)
        self.storage.download_file(key, local)


def test_a_shard_that_several_need_at_once_is_fetched_once(bucket: Storage) -> None:
    slow: Any = Slow(bucket)
    with ThreadPoolExecutor(8) as pool:
        first = pool.submit(lambda: content(ShardCache(slow, "key", 10**6).open(NAMES[3])))
        slow.asked.wait(60)
        started = threading.Barrier(8)

        def another() -> set[int]:
            started.wait(60)
            return content(ShardCache(slow, "key", 10**6).open(NAMES[3]))

        others = [pool.submit(another) for _ in range(7)]
        started.wait(60)
        slow.let_through.set()
        assert [item.result() for item in (first, *others)] == [{3}] * 8
    assert slow.fetched == [NAMES[3]]


def test_a_fetch_that_is_killed_is_done_by_the_next(bucket: Storage, tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        slow: Any = Slow(bucket)
        threading.Thread(target=lambda: (slow.asked.wait(60), os._exit(0))).start()
        ShardCache(slow, "key", 10**6).open(NAMES[0])
    os.waitpid(child, 0)
    assert held(tmp_path) == []
    assert content(ShardCache(bucket, "key", 10**6).open(NAMES[0])) == {0}


def test_the_bound_holds_for_all_sets_of_a_node(
    bucket: Storage, s3_bucket: str, s3_endpoint: str, tmp_path: Path
) -> None:
    other = open_storage(f"{s3_bucket}/other", StorageOptions(s3_endpoint))
    other.write_bytes(NAMES[0], bytes(SIZE_BYTES))
    for name in NAMES[:4]:
        ShardCache(bucket, "key", 2 * SIZE_BYTES).open(name)
    for path in tmp_path.rglob("shard-*.arrow"):
        os.utime(path, (time.time() - 60, time.time() - 60))
    ShardCache(other, "key", 2 * SIZE_BYTES).open(NAMES[0])
    assert held(tmp_path) == [NAMES[0], NAMES[3]]


def test_what_nobody_has_used_for_days_is_removed_by_the_next_set(bucket: Storage, tmp_path: Path) -> None:
    ShardCache(bucket, "used", 10**6).open(NAMES[0])
    ShardCache(bucket, "unused", 10**6).open(NAMES[1])
    long_ago = time.time() - 2 * UNUSED_S
    for path in tmp_path.rglob("*"):
        if path.name != NAMES[0]:
            os.utime(path, (long_ago, long_ago))
    ShardCache(bucket, "new", 10**6).open(NAMES[2])
    assert held(tmp_path) == [NAMES[0], NAMES[2]]


def test_a_set_that_another_process_removes_while_one_evicts_is_passed_over(
    bucket: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ShardCache(bucket, "unused", 10**6).open(NAMES[1])
    removed = next(tmp_path.rglob(NAMES[1])).parent
    scandir = os.scandir

    def removing(path: int | str | os.PathLike[str]) -> object:
        if not isinstance(path, int) and Path(path) == removed:
            shutil.rmtree(removed, ignore_errors=True)
        return scandir(path)

    cache = ShardCache(bucket, "new", 10**6)
    cache.open(NAMES[0])
    monkeypatch.setattr(os, "scandir", removing)
    assert content(cache.open(NAMES[2])) == {2}
    assert held(tmp_path) == [NAMES[0], NAMES[2]]


def test_a_folder_is_read_where_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / NAMES[0]).write_bytes(b"\x05" * SIZE_BYTES)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    cache = ShardCache(open_storage(str(tmp_path / "set")), "key", 1)
    cache.prefetch(NAMES[0])
    assert content(cache.open(NAMES[0])) == {5}
    assert not (tmp_path / "temporary").exists()
