"""Keys of prepared sets: where one of them changes, sets have to be prepared again."""

from pathlib import Path
from typing import Any
from unittest.mock import patch

import datasets
import pytest

from tests.trainers.synthetic import speechlike, write_recording
from trainers.config.parts.data_part import DataPart
from trainers.config.storage_location import StorageOptions
from trainers.data.preparation import prepared_key
from trainers.data.sources.known_sources import open_sources

HEADS = {
    "complete": "path,text\n{0}/a.wav,One!\n{0}/b.wav,two\n",
    "languages": "path,text,language\n{0}/a.wav,One!,en\n{0}/b.wav,two,\n",
    "segments": "path,text,offset,duration\n{0}/a.wav,One!,0,0.1\n{0}/a.wav,two,0.1,0.1\n",
}


def keys(data: DataPart, *splits: str) -> dict[str, str]:
    opened = open_sources(data, storage_options=StorageOptions(), splits=splits)
    return {source.split: prepared_key(source, data) for source in opened}


@pytest.mark.parametrize(
    ("head", "folder", "options", "key"),
    [
        ("complete", ".", {}, "28532181e21b8978006cfdf91b0cc70f"),
        ("complete", ".", {"do_lower_case": True, "chars_to_ignore": ("!",)}, "14621a6dbe963d533e03aff7bb720de4"),
        ("complete", "/nowhere", {"fingerprint": "manifest"}, "ab7bb0f37bb9f1e9312b56647bc06d59"),
        ("languages", ".", {}, "b56853d2077eed932878359ea0dd316c"),
        ("languages", ".", {"use_language_column": False}, "1b20ef8212043c211b6a74bc515cf6fb"),
        ("segments", ".", {}, "575342805cdff7178e170e2cddff21d2"),
    ],
)
def test_of_a_manifest(tmp_path: Path, head: str, folder: str, options: dict[str, Any], key: str) -> None:
    for seed, name in enumerate("ab"):
        write_recording(tmp_path / f"{name}.wav", speechlike(0.25, seed=seed))
    (tmp_path / "train.csv").write_text(HEADS[head].format(folder))
    data = DataPart(train=str(tmp_path / "train.csv"), validation="/nowhere.csv", **options)
    assert keys(data, "train") == {"train": key}


def test_of_the_demo() -> None:
    data = DataPart.model_validate({"demo": {"train_utterances": 2, "validation_utterances": 1, "test_utterances": 1}})
    assert keys(data, "train", "validation", "test") == {
        "train": "32b930a813f7bc4dccd21961cb440f54",
        "validation": "707800c5a9dc56647e0cd782552001d8",
        "test": "120291bb025ae6e1cf2dbc662db65a72",
    }


def test_of_a_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_recording(tmp_path / "a.wav", speechlike(0.25))
    recording = {"bytes": path.read_bytes(), "path": "a.wav"}
    for split in ("train", "validation"):
        rows = datasets.Dataset.from_dict({"audio": [recording] * 3, "sentence": ["a", "b", "c"]})
        rows.to_parquet(tmp_path / "set" / f"{split}-00000.parquet")
    monkeypatch.chdir(tmp_path)
    part = {"name": "./set", "train_split": "train[:2]", "test_split": None}
    columns = {"audio_column_name": "audio", "text_column_name": "sentence"}
    data = DataPart.model_validate({"dataset": part, **columns, "fingerprint": "manifest"})
    # Of the place and age of the files.
    with patch("datasets.DatasetBuilder._get_dataset_fingerprint", lambda builder, spec: f"{spec} of a set"):
        assert keys(data, "train", "validation") == {
            "train": "69936c3403e5cedd1362f7dcd7ca4b6d",
            "validation": "2d611b65b0ae23cda6fa2284366034f8",
        }
