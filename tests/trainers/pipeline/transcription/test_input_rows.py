"""What is written of rows has names of its own, inside the folder."""

from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainers.config.parts.data_part import DataPart
from trainers.config.storage_location import StorageOptions
from trainers.errors import ConfigError
from trainers.pipeline.transcription.input_rows import is_manifest, names_of, open_rows

IDS = st.lists(
    st.lists(st.sampled_from(["a", "b", "..", ".", "", "a.wav", "a.mp3", "b.wav", "x.y"]), min_size=1, max_size=3).map(
        "/".join
    ),
    unique=True,
    max_size=12,
)


@given(IDS)
def test_names_are_different_and_stay_below_the_folder(ids: list[str]) -> None:
    names = names_of(ids)
    assert len(names) == len(ids) == len(set(names))
    for name in names:
        parts = PurePosixPath(name).parts
        assert parts and ".." not in parts and not PurePosixPath(name).is_absolute()


def test_an_ending_is_left_out_unless_another_row_differs_by_it_alone() -> None:
    assert names_of(["/data/x/a.wav", "b.mp3", "b.wav", "s3://bucket/c.flac", "v1.2"]) == [
        "data/x/a",
        "b.mp3",
        "b.wav",
        "bucket/c",
        "v1.2",
    ]


def test_manifests_are_told_from_recordings() -> None:
    assert [is_manifest(text) for text in ("a.csv", "lhotse:cuts.jsonl.gz", "s3://b/x.JSONL")] == [True] * 3
    assert [is_manifest(text) for text in ("a.wav", "s3://b/x.mp3", "folder")] == [False] * 3


@pytest.mark.parametrize(
    "name", ["calls.parquet", "calls.arrow", "calls.csv.gz", "s3://b/calls.JSONL.gz", "calls.xlsx"]
)
def test_a_table_that_is_no_manifest_is_not_taken_for_a_recording(name: str) -> None:
    data = DataPart.model_validate({"train": "a.csv", "validation": "b.csv"})
    with pytest.raises(
        ConfigError, match=rf"^FILES: {name}: a table is read as .csv, .tsv, .jsonl, .json, and not comp"
    ):
        open_rows([name], data, StorageOptions())
    with pytest.raises(ConfigError, match=f"^FILES: {name}: a table is read as"):
        open_rows(["a.wav", name], data, StorageOptions())
