"""Data sets of Parquet files: the same rows and recordings as `datasets` gives, without recordings in the driver."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.trainers.synthetic import speechlike, write_recording
from trainers.config.parts.data_part import DataPart
from trainers.config.storage_location import StorageOptions
from trainers.data.preparation import PrepareOptions, ShardTask, prepare, run_in_process
from trainers.data.prepared_set import ClipReader
from trainers.data.sources.data_source import SourceSplit
from trainers.data.sources.known_sources import open_sources
from trainers.data.sources.recording_readers import Row
from trainers.data.sources.row_files.row_file import FILE
from trainers.errors import AudioError, DataError, StorageError

ROWS = 40
# As `datasets` writes it.
AUDIO = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
FEATURES = {
    "audio": {"decode": False, "_type": "Audio"},
    "sentence": {"dtype": "string", "_type": "Value"},
    "id": {"dtype": "int64", "_type": "Value"},
}
SCHEMA = pa.schema(
    [("audio", AUDIO), ("sentence", pa.string()), ("id", pa.int64())],
    metadata={"huggingface": json.dumps({"info": {"features": FEATURES}})},
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A train split of two files, in groups of seven rows, and a validation split of rows that train has too."""
    folder = tmp_path_factory.mktemp("set")
    (folder / "data").mkdir()
    rows = [_row(folder, number) for number in range(ROWS)]
    parts = {"train-0-of-2": rows[:26], "train-1-of-2": rows[26:], "validation-0-of-1": rows[:10]}
    for name, part in parts.items():
        table = pa.Table.from_pylist(part, schema=SCHEMA)
        pq.write_table(table, folder / "data" / f"{name}.parquet", row_group_size=7)
    return folder / "data"


def _row(folder: Path, number: int) -> dict[str, Any]:
    path = write_recording(folder / f"{number}.wav", speechlike(0.1 + number / 100, seed=number))
    return {
        "audio": {"bytes": path.read_bytes(), "path": f"{number}.wav"},
        "sentence": None if number == 5 else f"text {number}",
        "id": 1000 + number,
    }


def data_of(folder: Path, **splits: str) -> DataPart:
    part = {"name": str(folder), "test_split": None, **splits}
    return DataPart.model_validate({"dataset": part, "audio_column_name": "audio", "text_column_name": "sentence"})


def opened(folder: Path, **splits: str) -> SourceSplit:
    (source,) = open_sources(data_of(folder, **splits), storage_options=StorageOptions(), splits=("train",))
    return source


def read_by_datasets(folder: Path, split: str) -> dict[str, list[Any]]:
    """Columns of a split as `datasets` itself reads it, recordings and all."""
    loaded = datasets.load_dataset(str(folder), split=split)
    columns: dict[str, list[Any]] = loaded.cast_column("audio", datasets.Audio(decode=False))[:]
    return columns


def recordings_of(source: SourceSplit, file: Path | None = None) -> list[bytes | AudioError]:
    """The recordings of a split, of which another Parquet file may have taken the place of its own."""
    rows: list[Row] = source.table.to_pylist()
    return list(source.reader.read(rows if file is None else [{**row, FILE: str(file)} for row in rows]))


@pytest.mark.parametrize(
    "split", ["train", "validation", "train+validation", "train[5:30]", "train[:50%]+validation[-3:]", "all"]
)
def test_rows_and_recordings_are_those_of_datasets(folder: Path, split: str) -> None:
    source, expected = opened(folder, train_split=split), read_by_datasets(folder, split)
    assert FILE in source.table.column_names
    assert source.table["text"].to_pylist() == [text or "" for text in expected["sentence"]]
    assert source.table["audio"].to_pylist() == [audio["path"] for audio in expected["audio"]]
    assert recordings_of(source) == [audio["bytes"] for audio in expected["audio"]]


@pytest.mark.parametrize("rows_per_shard", [4, 16])
def test_each_row_is_prepared_whatever_shards_hold(
    folder: Path, tmp_path: Path, rows_per_shard: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PrepareOptions, "of", lambda data: PrepareOptions(False, False, rows_per_shard=rows_per_shard))
    made = prepare(
        opened(folder),
        data_of(folder),
        cache_url=str(tmp_path),
        storage_options=StorageOptions(),
        run="test",
        runner=run_in_process,
        log=lambda line: None,
    )
    assert made.summary.prepared == ROWS
    clips = ClipReader(made, cache_bytes=1)
    for number in range(ROWS):
        assert np.array_equal(clips.read(number), speechlike(0.1 + number / 100, seed=number))


@pytest.mark.parametrize(
    "split", ["train[16:26]+train[:16]", "train[30:]+train[:3]+train[1:20]", "train[20:26]+train[:2]"]
)
def test_parts_of_a_split_in_any_order_have_their_own_recordings(folder: Path, split: str) -> None:
    source, expected = opened(folder, train_split=split), read_by_datasets(folder, split)
    assert source.table["text"].to_pylist() == [text or "" for text in expected["sentence"]]
    assert recordings_of(source) == [audio["bytes"] for audio in expected["audio"]]


def test_a_set_of_recordings_of_other_rows_is_not_found_again(folder: Path) -> None:
    in_order, back = (opened(folder, train_split=split) for split in ("train[:3]+train[5:9]", "train[5:9]+train[:3]"))
    assert in_order.fingerprint != back.fingerprint


def test_a_file_that_has_fewer_rows_by_now_stops_preparing(folder: Path, tmp_path: Path) -> None:
    small = tmp_path / "small.parquet"
    pq.write_table(pq.read_table(folder / "train-0-of-2.parquet").slice(0, 3), small)
    source = opened(folder, train_split="train[2:9]")
    with pytest.raises(StorageError, match=r"has 3 rows, but row 8 is needed"):
        recordings_of(source, small)


def test_a_damaged_file_is_named(folder: Path, tmp_path: Path) -> None:
    source = opened(folder, train_split="train[:3]")
    whole = (folder / "train-0-of-2.parquet").read_bytes()
    damaged = tmp_path / "damaged.parquet"
    for content in (whole[:5000], whole[:-8] + bytes(8)):
        damaged.write_bytes(content)
        with pytest.raises(DataError, match=r"damaged.parquet: this Parquet file is damaged \(.*: fetch it again"):
            recordings_of(source, damaged)


def test_other_bytes_than_a_page_has_a_checksum_of_are_never_a_recording(folder: Path, tmp_path: Path) -> None:
    source = opened(folder, train_split="train[:3]")
    checked = tmp_path / "checked.parquet"
    table = pq.read_table(folder / "train-0-of-2.parquet")
    pq.write_table(table, checked, write_page_checksum=True, compression="none", write_statistics=False)
    content = bytearray(checked.read_bytes())
    content[content.index(b"RIFF") + 100] ^= 1
    checked.write_bytes(content)
    with pytest.raises(StorageError, match="CRC checksum verification failed"):
        recordings_of(source, checked)


@pytest.mark.parametrize("split", ["train[:1%]", "train[5:5]", "train[9:3]+validation[100:]"])
def test_a_split_without_rows_is_refused(folder: Path, split: str) -> None:
    with pytest.raises(DataError, match=r"split train\[.*(there are no rows|corresponds to no data)"):
        opened(folder, train_split=split)


def test_a_row_without_an_id_makes_them_numbers(folder: Path, tmp_path: Path) -> None:
    table = pq.read_table(folder / "validation-0-of-1.parquet").slice(0, 2)
    ids = pa.array([1, None], pa.int64())
    for name in ("train", "validation"):
        pq.write_table(table.set_column(2, "id", ids), tmp_path / f"{name}.parquet")
    assert opened(tmp_path).table["id"].to_pylist() == ["train-00000000", "train-00000001"]


def test_the_rows_of_a_large_group_are_read_by_one_task(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PrepareOptions, "of", lambda data: PrepareOptions(False, False, rows_per_shard=3))
    blocks: list[pa.Table] = []

    def runner(parts: list[pa.Table], task: ShardTask) -> Iterator[pa.Table]:
        blocks.extend(parts)
        yield from run_in_process(parts, task)

    prepare(
        opened(folder),
        data_of(folder),
        cache_url=str(tmp_path),
        storage_options=StorageOptions(),
        run="test",
        runner=runner,
        log=lambda line: None,
    )
    assert [len(block) for block in blocks] == [9, 9, 9, 9, 4]


def test_recordings_that_are_only_named_are_read_from_their_paths(tmp_path: Path) -> None:
    rows = [str(write_recording(tmp_path / f"{number}.wav", speechlike(0.3, seed=number))) for number in range(3)]
    table = datasets.Dataset.from_dict({"audio": rows, "sentence": ["a", "b", "c"]})
    table.to_parquet(tmp_path / "set" / "train-00000.parquet")
    table.to_parquet(tmp_path / "set" / "validation-00000.parquet")
    made = prepare(
        opened(tmp_path / "set"),
        data_of(tmp_path / "set"),
        cache_url=str(tmp_path / "prepared"),
        storage_options=StorageOptions(),
        run="test",
        runner=run_in_process,
        log=lambda line: None,
    )
    assert np.array_equal(ClipReader(made, cache_bytes=1).read(2), speechlike(0.3, seed=2))


def test_a_folder_that_the_node_does_not_have_stops_preparing(folder: Path, tmp_path: Path) -> None:
    source = opened(folder)
    gone = [json.dumps(path.replace(str(folder), "/nowhere")) for path in source.table[FILE].to_pylist()]
    place = source.table.column_names.index(FILE)
    paths = pa.array([json.loads(path) for path in gone])
    moved = replace(source, table=source.table.set_column(place, FILE, paths))
    with pytest.raises(StorageError, match=r"/nowhere/train.*cannot be read here.*every node"):
        prepare(
            moved,
            data_of(folder),
            cache_url=str(tmp_path),
            storage_options=StorageOptions(),
            run="test",
            runner=run_in_process,
            log=lambda line: None,
        )


def test_a_split_or_column_that_is_not_there_is_named(folder: Path) -> None:
    with pytest.raises(DataError, match=r"no split 'dev'; there are train, validation"):
        opened(folder, train_split="dev")
    data = data_of(folder).model_copy(update={"text_column_name": "text"})
    with pytest.raises(
        DataError, match=r"no column 'text' among audio, sentence: set data.text_column_name to 'sentence'"
    ):
        open_sources(data, storage_options=StorageOptions(), splits=("train",))


def test_a_column_of_something_else_than_recordings_is_refused(tmp_path: Path) -> None:
    decoded = {"audio": [{"array": [0.1] * 9, "sampling_rate": 16_000}], "sentence": ["a"]}
    pq.write_table(pa.table(decoded), tmp_path / "train.parquet")
    with pytest.raises(
        DataError, match=r"data.audio_column_name: .* 'audio' has struct<array: .*name a column of encoded"
    ):
        opened(tmp_path)


def test_a_row_without_a_recording_says_so(tmp_path: Path) -> None:
    rows = [{"bytes": b"RIFF", "path": "a.wav"}, None]
    pq.write_table(pa.table({"audio": pa.array(rows, AUDIO), "sentence": ["a", "b"]}), tmp_path / "train.parquet")
    (_, reason) = recordings_of(opened(tmp_path))
    assert str(reason) == "its row has neither a recording nor a path"


def test_a_folder_that_datasets_cannot_load_is_an_error_with_the_cause(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"audio": "a.wav", "sentence"\n')
    with pytest.raises(DataError, match=r"data.dataset: .*train.jsonl: line 1 is not JSON \(.*write one object a line"):
        opened(tmp_path)
