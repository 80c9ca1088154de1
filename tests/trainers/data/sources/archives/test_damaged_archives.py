"""Damaged archives are read as they were made, or refused: by each reader of compressed data."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.trainers.data.sources.archives.damages import headers_of_tar, require_same_or_refused
from tests.trainers.data.sources.archives.made_archives import manifest_members, recording, write_tar
from trainers.config.parts.data_part import DataPart
from trainers.config.storage_location import StorageOptions
from trainers.data.sources.known_sources import open_sources
from trainers.errors import DataError, StorageError


def rows_of(location: str) -> tuple[list[Any], list[Any]]:
    """Ids, texts and recordings of a location."""
    data = DataPart(train=location, validation="/nowhere.csv")
    (source,) = open_sources(data, storage_options=StorageOptions(), splits=("train",))
    rows = source.table.to_pylist()
    # Reasons name places.
    found = [each if isinstance(each, bytes) else type(each) for each in source.reader.read(rows)]
    return [(row["id"], row["text"]) for row in rows], found


def samples() -> list[tuple[str, bytes]]:
    """Of WebDataset, with recordings that no decoder would find to be damaged."""
    return [(f"u{number}.{end}", text) for number in range(3) for end, text in (("wav", b"\1" * 700), ("txt", b"text"))]


def common_voice(folder: Path) -> bytes:
    """An archive of three tables with clips whose bytes any decoder would take."""
    members, names = [], iter(range(9))
    for table in ("train", "dev", "test"):
        lines = ["client_id\tpath\tsentence"]
        for number in (next(names), next(names)):
            lines.append(f"{table}\tclip_{number}.mp3\tRečenica broj {number}.")
            members.append((f"cv/sr/clips/clip_{number}.mp3", bytes([number]) * 900))
        members.append((f"cv/sr/{table}.tsv", "\n".join(lines).encode()))
    return write_tar(folder / "made.tar", members, "w").read_bytes()


@pytest.mark.integration
def test_a_plain_tar_gives_the_clips_and_texts_that_it_was_made_of_or_none(tmp_path: Path) -> None:
    archive = tmp_path / "cv.tar"

    def read(data: bytes) -> object:
        archive.write_bytes(data)
        try:
            return rows_of(f"common_voice:{archive}?language=sr")
        except DataError as error:
            assert str(archive) in str(error)
            raise

    data = common_voice(tmp_path)
    require_same_or_refused(data, read, (DataError,), places=headers_of_tar(data))


@pytest.mark.parametrize("kind", ["manifest", "webdataset"])
@pytest.mark.integration
def test_rows_and_recordings_of_a_compressed_tar_are_those_that_it_was_made_of(tmp_path: Path, kind: str) -> None:
    members = manifest_members(3)
    if kind == "webdataset":
        members = samples()
    data = write_tar(tmp_path / "made.tar.gz", members, "w:gz").read_bytes()
    archive = tmp_path / "corpus.tar.gz"

    def read(content: bytes) -> object:
        archive.write_bytes(content)
        try:
            return rows_of(f"webdataset:{archive}" if kind == "webdataset" else f"{archive}/train.tsv")
        except DataError as error:
            assert str(archive) in str(error)
            raise

    require_same_or_refused(data, read, (DataError,), flips=100)


def test_compressed_cuts_are_those_that_were_written(tmp_path: Path) -> None:
    cuts = tmp_path / "cuts.jsonl.gz"
    (tmp_path / "a.wav").write_bytes(recording(0, "WAV"))

    def cut(number: int) -> dict[str, Any]:
        source = {"type": "file", "channels": [0], "source": "a.wav"}
        return {
            **{"id": f"c{number}", "start": 0, "duration": 0.3, "channel": 0, "type": "MonoCut"},
            "supervisions": [{"id": "s", "recording_id": "r", "start": 0, "duration": 0.3, "text": f"text {number}"}],
            "recording": {"id": "r", "sources": [source], "sampling_rate": 16000, "num_samples": 4800, "duration": 0.3},
        }

    def read(content: bytes) -> object:
        cuts.write_bytes(content)
        return rows_of(f"lhotse:{cuts}")

    data = gzip.compress("".join(json.dumps(cut(number)) + "\n" for number in range(20)).encode())
    require_same_or_refused(data, read, (DataError,), flips=30)


def test_a_joined_gzip_file_is_one_archive_where_its_parts_are_parts_of_one(tmp_path: Path) -> None:
    plain = write_tar(tmp_path / "plain.tar", members := manifest_members(3)).read_bytes()
    archive = tmp_path / "corpus.tar.gz"
    parts = [gzip.compress(plain[start : start + 1000]) for start in range(0, len(plain), 1000)]
    archive.write_bytes(b"".join(parts))
    rows, found = rows_of(f"{archive}/train.tsv")
    assert [name for name, _ in rows] == [name for name, _ in members[1:]]
    assert found == [content for _, content in members[1:]]
    # A part of the archive is damaged, and all others are right.
    changed = bytearray(parts[1])
    changed[0] ^= 1
    archive.write_bytes(b"".join([parts[0], bytes(changed), *parts[2:]]))
    with pytest.raises(DataError, match="the archive is damaged or truncated"):
        rows_of(f"{archive}/train.tsv")


def test_a_recording_that_is_damaged_after_its_archive_was_checked_is_noticed(tmp_path: Path) -> None:
    archive = write_tar(tmp_path / "corpus.tar.gz", samples(), "w:gz")
    data = DataPart(train=f"webdataset:{archive}", validation="/nowhere.csv")
    (source,) = open_sources(data, storage_options=StorageOptions(), splits=("train",))
    content = bytearray(gzip.decompress(archive.read_bytes()))
    content[2 * 512 + 100] ^= 1
    # Its size is another; that of a file in a bucket or with a bad disk is not.
    archive.write_bytes(gzip.compress(bytes(content)).ljust(archive.stat().st_size, b"\0"))
    with pytest.raises(StorageError, match="replaced since its rows were listed"):
        list(source.reader.read(source.table.to_pylist()))


def test_a_compressed_manifest_is_told_to_be_one(tmp_path: Path) -> None:
    (tmp_path / "train.csv.gz").write_bytes(gzip.compress(b"path,text\na.wav,a\n"))
    with pytest.raises(DataError, match=r"train\.csv\.gz: is compressed \(gzip\).*: unpack it with gunzip"):
        rows_of(str(tmp_path / "train.csv.gz"))


@pytest.mark.parametrize(("suffix", "mode"), [(".tar.gz", "w"), (".tar", "w:gz")])
def test_an_archive_whose_name_and_content_disagree_is_told_to_be_one(tmp_path: Path, suffix: str, mode: str) -> None:
    write_tar(tmp_path / f"corpus{suffix}", samples(), mode)
    with pytest.raises(DataError, match="its content is not what its name says"):
        rows_of(f"webdataset:{tmp_path}/corpus{suffix}")
