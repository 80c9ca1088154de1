"""Validation clips whose speakers the training set lacks, which evaluate.guard compares."""

import csv
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.trainers.synthetic import config, speechlike, write_corpus, write_recording
from trainers.pipeline.splits import OpenedData


@pytest.mark.parametrize(
    ("train", "validation", "new"),
    [
        (("ana", "bo", "ana"), ("bo", "cy", ""), ["001"]),
        (("ana", "bo", "ana"), ("dee", "cy", "cy"), ["000", "001", "002"]),
        (("ana", "bo", "ana"), ("ana", "ana", "bo"), []),
        # The speaker of the second clip may be any.
        (("ana", "", "ana"), ("dee", "cy", "cy"), []),
    ],
)
def test_speakers_that_the_training_lacks(
    tmp_path: Path, train: Sequence[str], validation: Sequence[str], new: Sequence[str]
) -> None:
    manifests = {
        split: str(_manifest(tmp_path, split, speakers))
        for split, speakers in {"train": train, "validation": validation}.items()
    }
    data = OpenedData.of(config({"run.storage_path": str(tmp_path / "runs"), "data": manifests}))
    assert sorted(data.new_speakers()) == [f"validation/{number}.wav" for number in new]


def test_speakers_of_packed_segments_are_known(tmp_path: Path) -> None:
    write_recording(tmp_path / "talk.wav", speechlike(2.0))
    rows = [("talk.wav", "one", 0, 1, "ana"), ("talk.wav", "two", 1, 1, "bo")]
    with (tmp_path / "train.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("path", "text", "offset", "duration", "speaker"), *rows])
    manifests = {
        "train": str(tmp_path / "train.csv"),
        "validation": str(_manifest(tmp_path, "validation", ("bo", "cy"))),
    }
    changes = {"run.storage_path": str(tmp_path / "runs"), "data": manifests, "data.pack_segments_s": 2}
    data = OpenedData.of(config(changes))
    assert [len(source.table) for source in data.sources] == [1, 2]
    assert sorted(data.new_speakers()) == ["validation/001.wav"]


def _manifest(folder: Path, name: str, speakers: Sequence[str]) -> Path:
    manifest = write_corpus(folder, ["one"] * len(speakers), durations_s=[0.2] * len(speakers), name=name)
    with manifest.open(newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    with manifest.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerow([*header, "speaker"])
        csv.writer(file).writerows([*row, speaker] for row, speaker in zip(rows, speakers, strict=True))
    return manifest
