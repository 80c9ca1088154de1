"""`--find-lr`: trains a few dozen steps of a recipe's own batches with a rising learning rate, and keeps no run."""

from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from trainers.config.locations import cache_url_of
from trainers.config.overrides import apply_overrides
from trainers.config.schema import TrainConfig
from trainers.distributed.console import print_line
from trainers.distributed.root_cause import converting_errors
from trainers.distributed.session import LocalSession
from trainers.errors import DivergedError
from trainers.pipeline.engine import LocalEngine
from trainers.pipeline.fit import fit
from trainers.run_folder.layout import RunFolder
from trainers.run_folder.resume import FROM
from trainers.training.arguments import silence_libraries
from trainers.training.loop import Loop
from trainers.training.planning import batch_shape
from trainers.training.tasks import ScoreTask, TrainTask
from trainers.training.trainer.rate_sweep import STEPS, Suggestion, Sweep, rates, smoothed
from trainers.training.worker import run_training_worker

# Each of so many steps is a line of the table.
_EVERY = 4


def find_lr(config: TrainConfig) -> int:
    """Prints losses by learning rate, and a suggested rate; returns an exit code.

    Trains in this process, with the recipe's number of utterances per step; batches by duration
    (`max_batch_duration_s`) are those of one worker. Prepared data is kept for the run.
    """
    silence_libraries()
    sweep = Sweep()
    with TemporaryDirectory(prefix="rayscribe-find-lr-") as folder, suppress(Sweep.Done, DivergedError):
        fit(swept_config(config, Path(folder)), _SweptEngine(sweep))
    for line in lines_of(sweep.losses):
        print_line(line)
    return 0


def swept_config(config: TrainConfig, folder: Path) -> TrainConfig:
    """Returns the recipe for one process that trains `STEPS` steps, scores nothing, and writes into a folder."""
    resume = config.run.resume if config.run.resume.startswith(FROM) else "auto"
    size = batch_shape(config, config.scaling.max_workers).global_batch_size
    changes: dict[str, Any] = {
        "run": {**config.run.model_dump(), "name": "find-lr", "storage_path": str(folder), "resume": resume},
        "data.cache_dir": cache_url_of(config),
        "scaling": {"use_gpu": config.scaling.use_gpu},
        "hub": {},
        "strategy": {},
        "evaluate": {},
        "evaluate.base": False,
        "checkpoint.refuse_if": {},
        "checkpoint.interpolate": [],
        "checkpoint.average": None,
        # Otherwise the initial weights would first transcribe a share of the training set.
        "training.keep_timestamps": 0,
        "training.max_steps": STEPS,
        "training.num_train_epochs": None,
        "training.extend": None,
        "training.warmup_steps": 0,
        "training.save_steps": STEPS,
        "training.eval_steps": None,
        "training.logging_steps": 1,
        "training.report_to": [],
        "training.global_batch_size": size,
    }
    overrides = [(tuple(name.split(".")), value) for name, value in changes.items()]
    return TrainConfig.model_validate(apply_overrides(config.model_dump(), overrides))


def lines_of(losses: list[float]) -> list[str]:
    """Returns a table of smoothed losses by learning rate, and the suggestion."""
    curve = smoothed(losses)
    lines = [f"lr {rates()[at]:.1e} · loss {curve[at]:.4f}" for at in range(0, len(curve), _EVERY)]
    found = Suggestion.of(losses)
    if found is None:
        return [
            *lines,
            "find-lr: the loss decreased at no learning rate: check that texts and recordings match",
        ]
    diverges = f", and diverges at {found.diverges:.1e}" if found.diverges is not None else ""
    suggestion = f"find-lr: the loss is lowest at a learning rate of {found.lowest:.1e}{diverges}; begin with a tenth"
    return [*lines, f"{suggestion}: --set training.learning_rate={found.rate:g}"]


class _SweptEngine(LocalEngine):
    def __init__(self, sweep: Sweep):
        super().__init__()
        self._sweep = sweep

    def run(self, task: TrainTask | ScoreTask, folder: RunFolder) -> None:
        assert isinstance(task, TrainTask), "only a training has a learning rate"
        with converting_errors(), suppress(Sweep.Done):
            run_training_worker(task, LocalSession.of_this_process(), self._watch)
        raise Sweep.Done

    def _watch(self, loop: Loop) -> None:
        loop.trainer.add_callback(self._sweep)
