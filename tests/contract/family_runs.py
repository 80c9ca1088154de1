"""Trainings of a tiny model, in this process or in ranks of their own, and what they leave in their folders."""

import json
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.contract.family_cases import plug_in
from tests.metrics_lines import metrics_of
from tests.trainers.synthetic import config
from tests.trainers.training.rank_processes import run_ranks
from trainers.config.schema import TrainConfig
from trainers.pipeline.engine import LocalEngine
from trainers.pipeline.fit import fit
from trainers.run_folder.journal import Checkpoint, Journal
from trainers.run_folder.layout import RunFolder
from trainers.training.callbacks import KeepCheckpoints
from trainers.training.trainer.speech_trainer import SpeechTrainer

STEPS, SAVE_STEPS = 6, 3
# Of a step of two forward passes the first one is done, and the run has a checkpoint.
DIES_AT = 4
GLOBAL_BATCH = 6


@dataclass(frozen=True)
class Run:
    """A run, by its config.

    Attributes:
        changes: Of the smallest config, by dotted names.
    """

    changes: Mapping[str, Any]

    @property
    def config(self) -> TrainConfig:
        return config(self.changes)

    @property
    def path(self) -> Path:
        return Path(self.changes["run.storage_path"], self.changes["run.name"])

    def here(self) -> None:
        """Trains in this process."""
        fit(self.config, LocalEngine())

    def in_ranks(self, *, dies: bool = False) -> None:
        """Trains in processes of their own, as torchrun starts them."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        run_ranks(train_rank, self.changes["scaling.num_workers"], dict(self.changes), dies)

    def checkpoints(self) -> tuple[Checkpoint, ...]:
        return Journal(RunFolder.of(self.config)).read().checkpoints

    def hashes(self) -> list[dict[str, Any]]:
        """SHA-256 of each checkpoint's weights, optimizer, schedule and hypotheses."""
        kept = ("model.safetensors", "optimizer.pt", "scheduler.pt", "validation.jsonl")
        return [{name: item.files[name]["sha256"] for name in kept} for item in self.checkpoints()]

    def numbers(self) -> dict[tuple[int, str], float]:
        """Every loss, norm and score, by step."""
        keys = ("loss", "grad_norm", "eval_loss", "eval_wer", "eval_cer")
        return {
            (line["step"], key): line[key]
            for line in metrics_of(RunFolder.of(self.config))
            for key in keys
            if key in line
        }

    def counts(self) -> dict[str, Any]:
        """What test.json says, but its loss."""
        totals: dict[str, Any] = json.loads((self.path / "evaluation" / "test.json").read_text())
        return {name: value for name, value in totals.items() if name != "loss"}

    def hypotheses(self) -> dict[str, str]:
        """Of the test split, by id."""
        lines = map(json.loads, (self.path / "evaluation" / "test.jsonl").read_text().splitlines())
        return {line["id"]: line["hypothesis"] for line in lines}

    def moments(self) -> int:
        """Numbers in the first moments of the last checkpoint's optimizer."""
        folder = self.path / "checkpoints" / self.checkpoints()[-1].name
        states = torch.load(folder / "optimizer.pt", weights_only=True)["state"].values()
        return sum(state["exp_avg"].numel() for state in states)

    def weights(self) -> dict[str, torch.Tensor]:
        """Of the finished model."""
        return load_file(self.path / "model" / "model.safetensors")


def run_of(folder: Path, corpus: Path, model: Mapping[str, Any], name: str, **changes: Any) -> Run:
    """A run of six steps; further changes by dotted names with a double underscore for each dot."""
    return Run(
        {
            "run.name": name,
            "run.storage_path": str(folder / "runs"),
            "data": {split: str(corpus / f"{split}.csv") for split in ("train", "validation", "test")},
            "data.cache_dir": str(folder / "prepared"),
            "model": dict(model),
            "training.max_steps": STEPS,
            "training.save_steps": SAVE_STEPS,
            "training.logging_steps": 1,
            "training.learning_rate": 3e-4,
            # By default AdamW moves a weight whose gradient is rounding alone as far as any other.
            "training.training_args": {"adam_epsilon": 1e-2},
            "training.global_batch_size": GLOBAL_BATCH,
            "training.per_device_train_batch_size": 4,
            "training.per_device_eval_batch_size": 4,
            "training.report_to": [],
            "checkpoint.num_to_keep": None,
            **{key.replace("__", "."): value for key, value in changes.items()},
        }
    )


def train_rank(rank: int, changes: dict[str, Any], dies: bool) -> None:
    """One rank of a run."""
    plug_in(pytest.MonkeyPatch())
    torch.set_num_threads(1)
    run = Run(changes)
    workers = run.config.scaling.max_workers
    if workers > 1:
        os.environ.update({"RANK": str(rank), "WORLD_SIZE": str(workers), "LOCAL_RANK": str(rank)})
        # accelerate asks for an address; the ranks meet at a file, which no port can be taken from.
        os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"})
        meeting = f"file://{run.path}.meeting"
        torch.distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=workers)
    if dies:
        SpeechTrainer.training_step = dying(SpeechTrainer.training_step)  # type: ignore[method-assign]
    run.here()


def dying(step: Any) -> Any:
    """A forward pass after which the process is killed, once the checkpoint of before is stored."""

    def passed(trainer: SpeechTrainer, *args: Any, **kwargs: Any) -> Any:
        loss = step(trainer, *args, **kwargs)
        if trainer.state.global_step == DIES_AT:
            keepers = (each for each in trainer.callback_handler.callbacks if isinstance(each, KeepCheckpoints))
            next(keepers)._uploader.wait()
            os.kill(os.getpid(), signal.SIGKILL)
        return loss

    return passed
