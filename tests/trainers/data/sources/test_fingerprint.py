"""What of the recordings decides whether they are prepared again."""

import os
from pathlib import Path

import pytest

from trainers.config.storage_location import StorageOptions
from trainers.data.sources import fingerprint
from trainers.data.sources.fingerprint import changed_since, marks_of, remember, settled_kind
from trainers.errors import ConfigError
from trainers.storage import Storage, open_storage


@pytest.fixture
def cache(tmp_path: Path) -> Storage:
    return open_storage(str(tmp_path / "prepared"))


@pytest.fixture
def recordings(tmp_path: Path) -> list[str]:
    files = [tmp_path / f"{number}.wav" for number in range(3)]
    for number, file in enumerate(files):
        file.write_bytes(b"audio" * number)
    return [str(file) for file in files]


def marks(recordings: list[str], cache: Storage | None, kind: fingerprint.Kind = "content") -> list[object]:
    return marks_of(settled_kind(kind, "/data/train.csv"), recordings, "/data/train.csv", StorageOptions(), cache)


def test_contents_are_read_once(recordings: list[str], cache: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    plain = fingerprint._sha256

    def counted(path: str) -> str:
        read.append(path)
        return plain(path)

    monkeypatch.setattr(fingerprint, "_sha256", counted)
    first = marks([*recordings, recordings[0]], cache)
    assert sorted(read) == recordings and first[0] == first[3]
    read.clear()
    assert marks([*recordings, recordings[0]], cache) == first
    assert read == []
    os.utime(recordings[1], (1, 1))
    assert marks([*recordings, recordings[0]], cache) == first, "the same content at another time"
    assert read == [recordings[1]]


def test_other_content_is_another_mark(recordings: list[str], cache: Storage) -> None:
    before = marks(recordings, cache)
    Path(recordings[1]).write_bytes(b"other")
    after = marks(recordings, cache)
    assert [one == other for one, other in zip(before, after, strict=True)] == [True, False, True]


def test_a_recording_that_is_not_there_has_no_mark(recordings: list[str], cache: Storage) -> None:
    assert marks([*recordings, "/nowhere.wav"], cache)[3] is None
    assert marks([*recordings, "/nowhere.wav"], None, "metadata")[3] is None


def test_a_manifest_alone_asks_nothing(cache: Storage) -> None:
    assert marks(["/nowhere.wav"], cache, "manifest") == []


def test_contents_in_a_bucket_are_not_read_for_it(recordings: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"data\.fingerprint is content, and s3://bucket/train.csv is in a bucket"):
        marks_of("content", recordings, "s3://bucket/train.csv", StorageOptions(), None)


def test_asking_a_bucket_is_a_choice(recordings: list[str]) -> None:
    bucket = "s3://bucket/test.csv"
    assert marks_of(settled_kind("auto", bucket), recordings, bucket, StorageOptions(), None) == []
    assert marks(recordings, None, "auto") == marks(recordings, None, "content")


def test_what_has_changed_since_is_known_by_name(recordings: list[str], cache: Storage) -> None:
    before = {"a.wav": "1", "b.wav": "2"}
    assert changed_since(cache, "key", before) == []
    remember(cache, "key", before)
    assert changed_since(cache, "key", {"a.wav": "1", "b.wav": "3", "new.wav": "4"}) == ["b.wav"]
    remember(cache, "key", {"b.wav": "3"})
    assert changed_since(cache, "key", {"b.wav": "3"}) == ["b.wav"], "the marks of a set do not change"
