"""Sets that earlier versions prepared are found again: these are their keys."""

from dataclasses import replace
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


def keys(data: DataPart, *splits: str, former: bool = False) -> dict[str, str]:
    opened = open_sources(data, storage_options=StorageOptions(), splits=splits)
    opened = [replace(source, fingerprint=source.former) for source in opened] if former else opened
    return {source.split: prepared_key(source, data) for source in opened}


@pytest.mark.parametrize(
    ("head", "folder", "options", "key"),
    [
        ("complete", ".", {}, "ad085d568c028b3d511c5d92dec0b40e"),
        ("complete", ".", {"do_lower_case": True, "chars_to_ignore": ("!",)}, "4e0dca3818908db1828e88d28a5c82e3"),
        ("complete", "/nowhere", {"fingerprint": "manifest"}, "9d6736cafbdbfdf6ed656c0a73b5f684"),
        ("languages", ".", {}, "2728eeb170f75e10d0514d2914c9b38f"),
        ("languages", ".", {"use_language_column": False}, "b8f0a5a80a2112f1f9315aa0730d905d"),
        ("segments", ".", {}, "0e8d4391eb170e454c28b10500ce6068"),
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


@pytest.mark.parametrize("has_recordings", [True, False])
def test_of_a_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_recordings: bool) -> None:
    path = write_recording(tmp_path / "a.wav", speechlike(0.25))
    recording = {"bytes": path.read_bytes(), "path": "a.wav"} if has_recordings else str(path)
    for split in ("train", "validation"):
        rows = datasets.Dataset.from_dict({"audio": [recording] * 3, "sentence": ["a", "b", "c"]})
        rows.to_parquet(tmp_path / "set" / f"{split}-00000.parquet")
    monkeypatch.chdir(tmp_path)
    part = {"name": "./set", "train_split": "train[:2]", "test_split": None}
    data = DataPart.model_validate({"dataset": part, "audio_column_name": "audio", "text_column_name": "sentence"})
    # Of the place and age of the files.
    with patch("datasets.DatasetBuilder._get_dataset_fingerprint", lambda builder, spec: f"{spec} of a set"):
        # What is only named is looked at since; a run that began before goes on.
        assert keys(data, "train", "validation", former=not has_recordings) == {
            "train": "2e2d412096faaffac8ae128d7acdde26",
            "validation": "f3293302fb4dfebb0e0784c267d27856",
        }
