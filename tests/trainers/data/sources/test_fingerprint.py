"""What of the recordings decides whether they are prepared again."""

import os
from pathlib import Path

import pytest

from trainers.config.parts.data_part import FingerprintKind
from trainers.config.storage_location import StorageOptions
from trainers.data.sources import fingerprint
from trainers.data.sources.fingerprint import (
    changed_since,
    fingerprint_recordings,
    hash_of_places,
    store_fingerprints,
)
from trainers.storage import Storage, open_storage, sha256_of


@pytest.fixture
def cache(tmp_path: Path) -> Storage:
    return open_storage(str(tmp_path / "prepared"))


@pytest.fixture
def recordings(tmp_path: Path) -> list[str]:
    files = [tmp_path / f"{number}.wav" for number in range(3)]
    for number, file in enumerate(files):
        file.write_bytes(b"audio" * number)
    return [str(file) for file in files]


def fingerprints(recordings: list[str], cache: Storage | None, kind: FingerprintKind = "content") -> list[object]:
    return fingerprint_recordings(kind, recordings, "/data/train.csv", StorageOptions(), cache)


def test_contents_are_read_once(recordings: list[str], cache: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    plain = sha256_of

    def counted(path: str) -> str:
        read.append(path)
        return plain(path)

    monkeypatch.setattr(fingerprint, "sha256_of", counted)
    first = fingerprints([*recordings, recordings[0]], cache)
    assert sorted(read) == recordings and first[0] == first[3]
    read.clear()
    assert fingerprints([*recordings, recordings[0]], cache) == first
    assert read == []
    os.utime(recordings[1], (1, 1))
    assert fingerprints([*recordings, recordings[0]], cache) == first, "the same content at another time"
    assert read == [recordings[1]]


def test_other_content_is_another_fingerprint(recordings: list[str], cache: Storage) -> None:
    before = fingerprints(recordings, cache)
    Path(recordings[1]).write_bytes(b"other")
    after = fingerprints(recordings, cache)
    assert [one == other for one, other in zip(before, after, strict=True)] == [True, False, True]


@pytest.mark.parametrize("other", ["written over", "put in its place"])
def test_other_content_of_the_same_size_and_time_is_another_fingerprint(
    recordings: list[str], cache: Storage, other: str
) -> None:
    before, path = fingerprints(recordings, cache), Path(recordings[1])
    status = path.stat()
    written = path if other == "written over" else path.with_name("new")
    written.write_bytes(b"other")
    os.utime(written, ns=(status.st_atime_ns, status.st_mtime_ns))
    written.replace(path)
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (status.st_size, status.st_mtime_ns)
    after = fingerprints(recordings, cache)
    assert [one == other for one, other in zip(before, after, strict=True)] == [True, False, True]


def test_a_recording_that_is_not_there_has_no_fingerprint(recordings: list[str], cache: Storage) -> None:
    assert fingerprints([*recordings, "/nowhere.wav"], cache)[3] is None
    assert fingerprints([*recordings, "/nowhere.wav"], None, "metadata")[3] is None


def test_a_manifest_alone_asks_nothing(cache: Storage) -> None:
    assert fingerprints(["/nowhere.wav"], cache, "manifest") == []


def test_the_same_package_unpacked_by_another_session_of_ray_is_the_same_place() -> None:
    package = "runtime_resources/working_dir_files/_ray_pkg_0a/data/a.wav"
    first, again, other = (f"/tmp/ray/session_{name}" for name in ("1/" + package, "2/" + package, "2/data/a.wav"))
    assert hash_of_places([first], []) == hash_of_places([again], []) != hash_of_places([other], [])


def test_what_has_changed_since_is_known_by_name(recordings: list[str], cache: Storage) -> None:
    before = {"a.wav": "1", "b.wav": "2"}
    assert changed_since(cache, "key", before) == []
    store_fingerprints(cache, "key", before)
    assert changed_since(cache, "key", {"a.wav": "1", "b.wav": "3", "new.wav": "4"}) == ["b.wav"]
    store_fingerprints(cache, "key", {"b.wav": "3"})
    assert changed_since(cache, "key", {"b.wav": "3"}) == ["b.wav"], "the fingerprints of a set do not change"
