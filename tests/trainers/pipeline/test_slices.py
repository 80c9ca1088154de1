"""Columns of manifests by which scores are sliced: from the manifest to what a run keeps of them."""

import csv
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.trainers.synthetic import config, write_corpus
from trainers.config.schema import TrainConfig
from trainers.data.preparation import prepared_key
from trainers.errors import ConfigError
from trainers.pipeline.splits import OpenedData

ACCENTS = ("Ekavian", " ", "Ijekavian")


@pytest.fixture
def manifests(tmp_path: Path) -> dict[str, str]:
    """A manifest with a column `accent` for each split."""
    found = {}
    for split in ("train", "validation", "test"):
        manifest = write_corpus(tmp_path, ["one", "two", "three"], durations_s=[0.2] * 3, name=split)
        with manifest.open(newline="", encoding="utf-8") as file:
            header, *rows = csv.reader(file)
        with manifest.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerow([*header, "accent"])
            csv.writer(file).writerows([*row, accent] for row, accent in zip(rows, ACCENTS, strict=True))
        found[split] = str(manifest)
    return found


def wanted(manifests: dict[str, str], columns: Sequence[str]) -> TrainConfig:
    cache = str(Path(manifests["train"]).parent / "cache")
    return config({"run.storage_path": cache, "data": {**manifests, "slice_columns": list(columns)}})


def test_scored_clips_keep_their_values_and_a_missing_column_is_told(
    manifests: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    asked = wanted(manifests, ["accent", "gender"])
    rows = [*OpenedData.of(asked).slices(asked.data.slice_columns)]
    assert [(row["split"], row["values"]) for row in rows] == [
        (split, values)
        for split in ("validation", "test")
        for values in ({"accent": "Ekavian"}, {}, {"accent": "Ijekavian"})
    ]
    assert rows[0]["id"] == "validation/000.wav"
    told = capsys.readouterr().out.splitlines()
    assert len(told) == 2 and f"test: {manifests['test']} has no column 'gender' with values" in told[1]


def test_other_columns_prepare_the_same_set(manifests: dict[str, str]) -> None:
    keys = []
    for columns in ((), ("accent",)):
        asked = wanted(manifests, columns)
        keys.append([prepared_key(source, asked.data) for source in OpenedData.of(asked).sources])
    assert keys[0] == keys[1]


def test_what_is_always_a_slice_is_refused(manifests: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="speaker is always a slice of the report: leave it out"):
        wanted(manifests, ["speaker"])
