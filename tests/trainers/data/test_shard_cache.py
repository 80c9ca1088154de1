import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from trainers.config.storage_location import StorageOptions
from trainers.data.shard_cache import ShardCache
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


@dataclass
class Evicting:
    """A bucket whose shards another process of the node evicts as soon as they have arrived, once each."""

    storage: Storage
    evicted: set[str]

    def url(self) -> str:
        return self.storage.url()

    def download_file(self, key: str, local: Path) -> None:
        self.storage.download_file(key, local)
        if key not in self.evicted:
            self.evicted.add(key)
            local.unlink()


@pytest.mark.parametrize("ahead", [False, True])
def test_a_shard_that_another_process_evicts_at_once_is_fetched_again(bucket: Storage, ahead: bool) -> None:
    storage: Any = Evicting(bucket, set())
    cache = ShardCache(storage, "key", SIZE_BYTES)
    if ahead:
        cache.prefetch(NAMES[0])
    assert content(cache.open(NAMES[0])) == {0}


def test_a_folder_is_read_where_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / NAMES[0]).write_bytes(b"\x05" * SIZE_BYTES)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    cache = ShardCache(open_storage(str(tmp_path / "set")), "key", 1)
    cache.prefetch(NAMES[0])
    assert content(cache.open(NAMES[0])) == {5}
    assert not (tmp_path / "temporary").exists()
