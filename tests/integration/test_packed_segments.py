"""Segments of long recordings are packed into clips, whose labels have their times and follow a text."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from tests.integration.test_second_starts import first, run_folder
from tests.trainers.synthetic import config, speechlike, write_recording
from trainers.data.preparation import prepared_key
from trainers.data.prepared_set import find
from trainers.pipeline.engine import LocalEngine
from trainers.pipeline.fit import fit
from trainers.pipeline.splits import open_config_sources
from trainers.storage import open_storage

SEGMENT_S, SEGMENTS = 0.6, 6


def _talks(folder: Path) -> Path:
    """Writes a manifest with the segments of two talks, last ones first."""
    rows = []
    for talk in range(2):
        samples = np.concatenate([speechlike(SEGMENT_S, seed=number) for number in range(SEGMENTS)])
        write_recording(folder / f"talk-{talk}.wav", samples)
        rows += [
            (f"talk-{talk}.wav", f"number {talk} {number}", number * SEGMENT_S, SEGMENT_S)
            for number in reversed(range(SEGMENTS))
        ]
    manifest = folder / "talks.csv"
    with manifest.open("w", newline="") as file:
        csv.writer(file).writerows([("path", "text", "offset", "duration"), *rows])
    return manifest


def test_packed_clips_are_trained_on_with_their_times(tones: Path, tmp_path: Path) -> None:
    changes = {
        "data.train": str(_talks(tmp_path)),
        "data.pack_segments_s": 2.0,
        "training.keep_timestamps": 1.0,
        "training.previous_text": 1.0,
    }
    wanted = config(first(tones, tmp_path) | changes)
    fit(wanted, LocalEngine())
    (source,) = (each for each in open_config_sources(wanted) if each.split == "train")
    cache = open_storage(f"{wanted.run.storage_path}/prepared")
    prepared = find(cache, prepared_key(source, wanted.data), wanted.run.storage_options)
    assert prepared is not None
    index = prepared.index
    assert index["duration_s"].to_pylist() == pytest.approx([1.8] * 4)
    assert index["text"].to_pylist()[0] == "number 0 0 number 0 1 number 0 2"
    before = [f"number {talk} 0 number {talk} 1 number {talk} 2" for talk in range(2)]
    assert index["previous"].to_pylist() == [None, before[0], None, before[1]]
    times = [(start_s, end_s) for _, start_s, end_s in json.loads(index["segments"].to_pylist()[0])]
    assert times == [pytest.approx(each) for each in ((0, 0.6), (0.6, 1.2), (1.2, 1.8))]
    assert (run_folder(wanted) / "result.json").exists()
