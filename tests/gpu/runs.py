"""Whole runs on the device: in this process, and in those of torchrun, which may be killed."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from safetensors.torch import load_file
from torch import Tensor

from tests.gpu.device import ON_GPU
from tests.integration.torchrun import run_in_ranks
from tests.metrics_lines import metrics_of
from tests.trainers.synthetic import config, content
from trainers.config.schema import TrainConfig
from trainers.pipeline.engine import LocalEngine
from trainers.pipeline.fit import fit
from trainers.run_folder.layout import RunFolder
from trainers.storage import open_storage

TIMEOUT_S = 300
STEPS, SAVE_STEPS = (12, 4) if ON_GPU else (6, 2)
# Of a rank that is killed.
KILLED_STEP = SAVE_STEPS + 1


def recipe(corpus: Path, root: Path, name: str, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Dotted names of a small run's fields."""
    return {
        "run.name": name,
        "run.storage_path": str(root),
        "data": {split: str(corpus / f"{split}.csv") for split in ("train", "validation", "test")},
        "data.normalizer": "basic",
        "model.d_model": 64 if ON_GPU else 16,
        "model.dropout": 0.1,
        "training.max_steps": STEPS,
        "training.save_steps": SAVE_STEPS,
        "training.logging_steps": 1,
        "training.learning_rate": 1e-3,
        "training.per_device_train_batch_size": 4,
        "training.per_device_eval_batch_size": 4,
        "decode.max_length": 8,
        "training.report_to": [],
        "scaling.use_gpu": ON_GPU,
        **(changes or {}),
    }


def run_here(corpus: Path, root: Path, name: str, changes: Mapping[str, Any] | None = None) -> TrainConfig:
    """A run from manifests to a finished model, in this process."""
    made = config(recipe(corpus, root, name, changes))
    fit(made, LocalEngine())
    return made


def losses(root: Path, name: str) -> list[float]:
    """The loss of each step."""
    lines = metrics_of(RunFolder(open_storage(str(root / name))))
    return [line["loss"] for line in lines if "loss" in line]


def weights(root: Path, name: str) -> dict[str, Tensor]:
    """Of the finished model."""
    return load_file(root / name / "model" / "model.safetensors")


@dataclass(frozen=True)
class Torchrun:
    """Runs in processes that torchrun starts.

    Attributes:
        corpus: The corpus.
        root: Where runs are.
        processes: How many train together.
        changes: Of the recipe.
    """

    corpus: Path
    root: Path
    processes: int
    changes: Mapping[str, Any]

    def start(self, name: str, **kill: Any) -> dict[str, Any]:
        """What a rank is told of a run, and where to kill it."""
        folder = self.root / f"of-{name}"
        folder.mkdir(exist_ok=True)
        changes = {**self.changes, "scaling.num_workers": self.processes}
        path = folder / "recipe.yaml"
        path.write_text(yaml.safe_dump(content(recipe(self.corpus, self.root, name, changes))))
        return {"words": ["--config", str(path), "--no-ray"], "folder": str(folder), **kill}

    def run(self, *starts: dict[str, Any]) -> tuple[int, str]:
        """Runs them one after the other; exit code, and what they said."""
        return run_in_ranks(self.processes, starts, timeout_s=TIMEOUT_S, CUBLAS_WORKSPACE_CONFIG=":16:8")

    def wrapped(self, name: str) -> dict[str, Any]:
        """What the first rank trained."""
        found: dict[str, Any] = json.loads((self.root / f"of-{name}" / "wrapped_0.json").read_text())
        return found
