"""The source of a config: one of the table, or of another distribution."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.trainers.synthetic import speechlike
from trainers.config.parts.data_part import DataPart
from trainers.config.storage_location import StorageOptions
from trainers.data.audio import encode_flac
from trainers.data.preparation import prepare, run_in_process
from trainers.data.prepared_set import ClipReader
from trainers.data.sources.known_sources import SOURCES, open_sources, source_of
from trainers.data.sources.mix_source import MixSource
from trainers.errors import ConfigError, DataError

# A source of another distribution: recordings one after the other in a file.
PACKED = """
from pathlib import Path
from dataclasses import dataclass

import pyarrow as pa

from trainers.data.sources.data_source import DataSource, SourceSplit, table_of
from trainers.errors import DataError


@dataclass(frozen=True)
class PackedReader:
    path: str

    def read(self, rows):
        content = Path(self.path).read_bytes()
        for row in rows:
            yield content[row["first"] : row["end"]]


class PackedSource(DataSource):
    splits = ("train", "validation")

    def open(self, split, fingerprint_cache):
        path, ends = self.data.source.options["path"], self.data.source.options["ends"]
        if not Path(path).exists():
            raise DataError(f"data.source.options: {path}: no such file")
        names = [str(number) for number in range(len(ends))]
        table = table_of({"id": name, "audio": name, "text": f"text {name}"} for name in names)
        table = table.append_column("first", pa.array([0, *ends[:-1]])).append_column("end", pa.array(ends))
        return SourceSplit(split, f"packed {path}", table, PackedReader(path), f"{path} {split}")
"""


@pytest.fixture
def packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DataPart:
    """Two recordings in a file, and an installed distribution that has their source."""
    installed = tmp_path / "site"
    (installed / "packed-1.0.dist-info").mkdir(parents=True)
    (installed / "packed_source.py").write_text(PACKED)
    (installed / "packed-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: packed\nVersion: 1.0\n")
    entry_point = "[rayscribe.sources]\npacked = packed_source:PackedSource\n"
    (installed / "packed-1.0.dist-info" / "entry_points.txt").write_text(entry_point)
    monkeypatch.syspath_prepend(installed)
    clips = [encode_flac(speechlike(seconds, seed=number) / 32768, 16_000) for number, seconds in enumerate((0.4, 0.6))]
    (tmp_path / "clips.bin").write_bytes(b"".join(clips))
    options = {"path": str(tmp_path / "clips.bin"), "ends": [len(clips[0]), len(clips[0]) + len(clips[1])]}
    return DataPart.model_validate({"source": {"name": "packed", "options": options}})


def test_each_kind_of_config_has_its_source() -> None:
    parts = {
        "manifests": {"train": "/train.csv", "validation": "/validation.csv"},
        "demo": {"demo": {}},
        "dataset": {"dataset": {"name": "google/fleurs", "test_split": None}},
        "mix": {"mix": [{"name": "one", "train": "/train.csv", "validation": "/validation.csv"}]},
    }
    assert set(parts) == set(SOURCES)
    splits = {}
    for name, part in parts.items():
        source = source_of(DataPart.model_validate(part), StorageOptions())
        assert type(source) is {**SOURCES, "mix": MixSource}[name]
        splits[name] = source.splits
    assert splits == {
        "manifests": ("train", "validation"),
        "demo": ("train", "validation", "test"),
        "dataset": ("train", "validation"),
        "mix": ("train", "validation"),
    }


def test_a_source_of_another_distribution_is_prepared(packed: DataPart, tmp_path: Path) -> None:
    opened = open_sources(packed, storage_options=StorageOptions())
    assert [split.split for split in opened] == ["train", "validation"]
    made = prepare(
        opened[0],
        packed,
        cache_url=str(tmp_path / "prepared"),
        storage_options=StorageOptions(),
        run="test",
        runner=run_in_process,
        log=lambda line: None,
    )
    assert made.index["text"].to_pylist() == ["text 0", "text 1"]
    assert np.array_equal(ClipReader(made, cache_bytes=1).read(1), speechlike(0.6, seed=1))
    Path(packed.source.options["path"]).unlink()  # type: ignore[union-attr]
    with pytest.raises(DataError, match="no such file"):
        open_sources(packed, storage_options=StorageOptions())


def test_a_source_that_is_not_installed_is_named_with_those_that_are(packed: DataPart) -> None:
    data = DataPart.model_validate({"source": {"name": "tar"}})
    with pytest.raises(ConfigError, match=r"'tar' is not a data source here.* manifests, demo, dataset, mix, packed"):
        source_of(data, StorageOptions())


def test_a_row_has_the_columns_of_every_table(packed: DataPart) -> None:
    (train, _) = open_sources(packed, storage_options=StorageOptions())
    assert train.table["row"].to_pylist() == [0, 1]
    assert train.table["language"].type == pa.string()
    assert not train.has_file_per_recording
