"""Labels of training clips get the times that the initial weights write for them, shown on tiny.en."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.real.corpora import LIBRISPEECH
from tests.trainers.synthetic import config
from trainers.pipeline.engine import LocalEngine
from trainers.pipeline.fit import fit

MOST_CLIPS = 12


@pytest.mark.long
def test_segments_have_the_words_of_the_transcripts(
    tmp_path: Path, real_weights: Callable[[str], Path], speech_data: Path
) -> None:
    manifests = {split: _shortened(Path(path)) for split, path in LIBRISPEECH.write(tmp_path, 0).items()}
    wanted = config(
        {
            "run.name": "timed",
            "run.storage_path": str(tmp_path / "runs"),
            "data": {"train": manifests["train"], "validation": manifests["validation"]},
            "data.max_duration_s": 30,
            "model": {"name_or_path": str(real_weights("tiny.en"))},
            "evaluate.base": False,
            "training.keep_timestamps": 1.0,
            "training.max_steps": 1,
            "training.global_batch_size": 4,
            "training.per_device_train_batch_size": 4,
        }
    )
    fit(wanted, LocalEngine())
    (file,) = (tmp_path / "runs/timed/attempts/1").glob("segments-*.jsonl")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    with Path(manifests["train"]).open(newline="") as read:
        known = {row["path"]: row for row in csv.DictReader(read)}
    timed = [row for row in rows if row["segments"]]
    assert len(rows) == MOST_CLIPS and len(timed) >= 0.8 * MOST_CLIPS
    for row in timed:
        clip = next(each for path, each in known.items() if path.endswith(row["id"]))
        assert " ".join(text for text, _, _ in row["segments"]) == clip["text"]
        starts = [start_s for _, start_s, _ in row["segments"]]
        assert starts == sorted(starts) and starts[0] < 2
        assert float(clip["duration"]) - 2 < row["segments"][-1][2] < float(clip["duration"]) + 1
    # Not found again: stored for all runs with the same weights and data.
    assert len([*(tmp_path / "runs/base_scores").glob("*/segments.jsonl")]) == 1


def _shortened(manifest: Path) -> str:
    with manifest.open(newline="") as file:
        header, *rows = csv.reader(file)
    with manifest.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows[:MOST_CLIPS]])
    return str(manifest)
