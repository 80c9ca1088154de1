"""The recordings and the recipe of the runs that earlier versions wrote: small, and the same wherever they lie."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.trainers.synthetic import config, write_corpus
from trainers.config.schema import TrainConfig

TEXTS = {
    "train": ["one two three", "four five", "six seven eight nine", "ten eleven"],
    "validation": ["twelve", "fourteen"],
    "test": ["fifteen", "seventeen"],
}
TINY_WHISPER = {"model.d_model": 8, "model.max_context_s": 1, "model.max_label_tokens": 48}
# A recording's size and time of change are part of a prepared set's key.
CHANGED_S = 1_700_000_000


def of_tiny_corpus(folder: Path, name: str, changes: Mapping[str, Any]) -> TrainConfig:
    """The config of a run of six steps, its recordings made anew."""
    manifests = {}
    for split, texts in TEXTS.items():
        durations_s = [0.5 + 0.1 * row for row in range(len(texts))]
        manifests[f"data.{split}"] = str(write_corpus(folder / "speech", texts, durations_s=durations_s, name=split))
    for recording in (folder / "speech").rglob("*.wav"):
        os.utime(recording, (CHANGED_S, CHANGED_S))
    return config(
        {
            **manifests,
            "run.name": name,
            "run.storage_path": str(folder / "runs"),
            "training.max_steps": 6,
            "training.eval_steps": 2,
            "training.save_steps": 2,
            "training.per_device_train_batch_size": 2,
            **changes,
        }
    )
