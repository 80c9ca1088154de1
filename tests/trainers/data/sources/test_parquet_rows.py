"""Data sets of Parquet files: the same rows, key and bytes as `datasets` gives, without recordings in the driver."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.trainers.synthetic import speechlike, write_recording
from trainers.config.parts.data_part import DataPart
from trainers.config.storage_location import StorageOptions
from trainers.data.preparation import PrepareOptions, ShardTask, prepare, prepared_key, run_here
from trainers.data.prepared_set import ClipReader
from trainers.data.sources.opening import Source, open_sources
from trainers.data.sources.parquet_rows import FILE
from trainers.errors import DataError, StorageError

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


def opened(folder: Path, **splits: str) -> Source:
    (source,) = open_sources(data_of(folder, **splits), storage_options=StorageOptions(), splits=("train",))
    return source


def as_before(folder: Path, **splits: str) -> Source:
    """As `datasets` reads it, recordings and all."""
    with patch("trainers.data.sources.opening._is_parquet", lambda builder: False):
        return opened(folder, **splits)


@pytest.mark.parametrize(
    "split", ["train", "validation", "train+validation", "train[5:30]", "train[:50%]+validation[-3:]", "all"]
)
def test_rows_and_key_are_those_of_datasets(folder: Path, split: str) -> None:
    source, before = opened(folder, train_split=split), as_before(folder, train_split=split)
    assert "audio_bytes" not in source.table.column_names
    assert FILE not in before.table.column_names
    for column in ("row", "id", "audio", "text"):
        assert source.table[column].to_pylist() == before.table[column].to_pylist()
    assert prepared_key(source, data_of(folder)) == prepared_key(before, data_of(folder))
    assert source.origin == before.origin


@pytest.mark.parametrize("rows_per_shard", [4, 16])
def test_the_prepared_bytes_are_those_of_datasets(
    folder: Path, tmp_path: Path, rows_per_shard: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PrepareOptions, "of", lambda data: PrepareOptions(False, False, rows_per_shard=rows_per_shard))
    shards: list[dict[str, bytes]] = []
    for number, source in enumerate((opened(folder), as_before(folder))):
        made = prepare(
            source,
            data_of(folder),
            cache_url=str(tmp_path / str(number)),
            storage_options=StorageOptions(),
            runner=run_here,
            log=lambda line: None,
        )
        assert made.summary.prepared == ROWS
        assert np.array_equal(ClipReader(made, cache_bytes=1).read(33), speechlike(0.43, seed=33))
        shards.append({path.name: path.read_bytes() for path in Path(made.url).glob("*.arrow")})
    assert shards[0] == shards[1]


def test_the_rows_of_a_large_group_are_read_by_one_task(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PrepareOptions, "of", lambda data: PrepareOptions(False, False, rows_per_shard=3))
    blocks: list[pa.Table] = []

    def runner(parts: list[pa.Table], task: ShardTask) -> Iterator[pa.Table]:
        blocks.extend(parts)
        yield from run_here(parts, task)

    prepare(
        opened(folder),
        data_of(folder),
        cache_url=str(tmp_path),
        storage_options=StorageOptions(),
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
        runner=run_here,
        log=lambda line: None,
    )
    assert np.array_equal(ClipReader(made, cache_bytes=1).read(2), speechlike(0.3, seed=2))


def test_a_folder_that_the_node_does_not_have_stops_preparing(folder: Path, tmp_path: Path) -> None:
    source = opened(folder)
    gone = [json.dumps(path.replace(str(folder), "/nowhere")) for path in source.table[FILE].to_pylist()]
    place = source.table.column_names.index(FILE)
    paths = pa.array([json.loads(path) for path in gone])
    moved = Source(source.split, source.origin, source.table.set_column(place, FILE, paths), source.fingerprint)
    with pytest.raises(StorageError, match=r"/nowhere/train.*cannot be read here.*every node"):
        prepare(
            moved,
            data_of(folder),
            cache_url=str(tmp_path),
            storage_options=StorageOptions(),
            runner=run_here,
            log=lambda line: None,
        )


def test_a_split_or_column_that_is_not_there_is_named(folder: Path) -> None:
    with pytest.raises(DataError, match=r"no split 'dev'; there are train, validation"):
        opened(folder, train_split="dev")
    data = data_of(folder).model_copy(update={"text_column_name": "text"})
    with pytest.raises(DataError, match=r"data.text_column_name: .* no column 'text'; it has audio, sentence, id"):
        open_sources(data, storage_options=StorageOptions(), splits=("train",))
