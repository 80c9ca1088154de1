"""What keeps a Whisper at its full context while it is fine-tuned short: python -m tests.benchmarks.short_context.

    FSDD=/path/to/fsdd OMP_NUM_THREADS=1 python -m tests.benchmarks.short_context [--full-s 4] [--folder F] [--smoke]

Trains a small Whisper on three speakers of the Free Spoken Digit Dataset with every clip padded to its full context,
then fine-tunes it at a short one: on the fourth speaker, and on the three once more, each without and with each
regularizer. Each model is scored on other clips of the fourth and of the three, at the short context and at the whole
one, side by side. The speed of training is per second of this process's CPU time, so that what else the machine does
hardly counts. One process without Ray.
"""

import argparse
import csv
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from tests.benchmarks.table import machine_facts
from trainers.config.loader import build_config
from trainers.config.overrides import apply_overrides
from trainers.config.schema import TrainConfig
from trainers.distributed.session import LocalSession
from trainers.pipeline.engine import LocalEngine
from trainers.pipeline.evaluate import evaluate
from trainers.pipeline.fit import fit
from trainers.run_folder.layout import RunFolder
from trainers.training.loop import Loop
from trainers.training.tasks import ScoreTask, TrainTask
from trainers.training.worker import run_training_worker

SPLITS = ("train", "valid", "test")
NEW_SPEAKER, SHORT_S = "theo", 1
MATCHING, SHARE = "model.full_context_matching", "training.full_context_fraction"
KEEPING: Mapping[str, Mapping[str, Any]] = {
    "nothing": {},
    "share 0.1": {SHARE: 0.1},
    "share 0.3": {SHARE: 0.3},
    "matching 0.1": {MATCHING: 0.1},
    "matching 1": {MATCHING: 1.0},
    "matching 1, of 0.3": {MATCHING: 1.0, f"{MATCHING}_fraction": 0.3},
    "share 0.1, matching 0.1": {SHARE: 0.1, MATCHING: 0.1},
    "share 0.1, matching 1": {SHARE: 0.1, MATCHING: 1.0},
}
SMOKE = {"model.d_model": 16, "model.encoder_layers": 1, "decode.max_length": 4}


class StepTimes(TrainerCallback):
    """CPU seconds of this process within optimizer steps, without scores and checkpoints."""

    def __init__(self) -> None:
        """None yet."""
        self.total_s, self.steps, self._since_s = 0.0, 0, 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Starts the clock; the first step is not counted."""
        self._since_s = time.process_time()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stops it."""
        if state.global_step > 1:
            self.total_s += time.process_time() - self._since_s
            self.steps += 1


class TimedEngine(LocalEngine):
    """This process, with the times of its steps."""

    def __init__(self) -> None:
        """Nothing is trained yet."""
        super().__init__()
        self.times = StepTimes()

    def run(self, task: TrainTask | ScoreTask, folder: RunFolder) -> None:
        """See `LocalEngine`."""
        assert isinstance(task, TrainTask)
        run_training_worker(task, LocalSession.of_this_process(), self._watch)

    def _watch(self, loop: Loop) -> None:
        loop.trainer.add_callback(self.times)


def write_manifests(source: Path, folder: Path) -> None:
    """Writes old-<split>.csv of three speakers and new-<split>.csv of the fourth."""
    for split in SPLITS:
        rows = list(csv.DictReader((source / f"{split}.csv").open(encoding="utf-8")))
        for whose in ("old", "new"):
            chosen = [row for row in rows if (row["speaker"] == NEW_SPEAKER) == (whose == "new")]
            with (folder / f"{whose}-{split}.csv").open("w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file)
                writer.writerow(("path", "text"))
                writer.writerows((str(source / row["path"]), row["text"]) for row in chosen)


def config_of(folder: Path, name: str, whose: str, changes: Mapping[str, Any]) -> TrainConfig:
    """The recipe of a run on one side's clips."""
    content = {
        "run": {"name": name, "storage_path": str(folder / "runs")},
        "data": {
            "train": f"{folder}/{whose}-train.csv",
            "validation": f"{folder}/{whose}-valid.csv",
            "test": f"{folder}/{whose}-test.csv",
            "cache_dir": str(folder / "prepared"),
            # Some clips are longer than the short context.
            "max_duration_s": SHORT_S,
            "too_long_eval": "skip",
        },
        "model": {"language": "English"},
        "training": {"warmup_steps": 50, "report_to": [], "logging_steps": 50},
        "decode": {"max_length": 8},
    }
    overrides = [(tuple(key.split(".")), value) for key, value in changes.items()]
    return build_config(apply_overrides(content, overrides), origin="short_context", environment={})


def whole_model(folder: Path, given: argparse.Namespace) -> TrainConfig:
    """Trains the Whisper that all others begin with, every clip padded to its full context."""
    sizes = {"model.d_model": 64, "model.encoder_layers": 2, "model.decoder_layers": 1, "model.vocab_size": 300}
    changes = {
        "model.init": "scratch",
        **sizes,
        "model.max_context_s": given.full_s,
        SHARE: 1.0,
        "training.max_steps": given.full_steps,
        "training.save_steps": given.full_steps,
        "training.per_device_train_batch_size": 32,
        "training.learning_rate": 2e-3,
        **(SMOKE if given.smoke else {}),
    }
    wanted = config_of(folder, "whole", "old", changes)
    fit(wanted, LocalEngine())
    return wanted


def short_model(
    folder: Path, given: argparse.Namespace, name: str, whose: str, changes: Mapping[str, Any]
) -> TrainConfig:
    """The recipe of a fine-tune of that model at the short context, on one side's clips."""
    own = {
        "model.init": "pretrained",
        "model.name_or_path": str(folder / "runs" / "whole" / "model"),
        "model.max_context_s": SHORT_S,
        "training.max_steps": given.steps,
        "training.save_steps": given.steps,
        "training.per_device_train_batch_size": 16,
        "training.learning_rate": 3e-4,
        "decode.max_length": 8,
    }
    smoke = {"decode.max_length": 4} if given.smoke else {}
    return config_of(folder, name, whose, {**own, **smoke, **changes})


def rates_of(wanted: TrainConfig, folder: Path, model: str) -> list[float]:
    """WER in percent: of the new speaker short and whole, of the old ones short and whole."""
    rates = []
    for whose in ("new", "old"):
        data = wanted.data.model_copy(update={"test": f"{folder}/{whose}-test.csv"})
        scored = wanted.model_copy(update={"data": data})
        totals = evaluate(scored, LocalEngine(), model=model, split="test").totals
        rates += [totals["wer"], totals["full_context"]["wer"]]
    return rates


def row_of(*cells: str, rates: Sequence[float], clips_per_s: float | None, first: float | None) -> str:
    """A row of the table, as Markdown."""
    speed = f"{clips_per_s:.0f} | {clips_per_s / (first or clips_per_s):.2f}×" if clips_per_s is not None else " | "
    return f"| {' | '.join(cells)} | {' | '.join(f'{rate:.1f} %' for rate in rates)} | {speed} |"


def tune(folder: Path, given: argparse.Namespace, whose: str) -> None:
    """Fine-tunes on one side's clips with each regularizer, and prints a row of each."""
    first: float | None = None
    # The first and the last where it is only to be seen that it runs.
    chosen = [*KEEPING.items()][:: len(KEEPING) - 1 if given.smoke else 1]
    for number, (name, changes) in enumerate(chosen):
        wanted, engine = short_model(folder, given, f"{whose}-{number}", whose, changes), TimedEngine()
        result = fit(wanted, engine)
        steps, size = engine.times.steps, wanted.training.per_device_train_batch_size
        clips_per_s = steps * size / engine.times.total_s if steps else None
        first = first or clips_per_s
        rates = rates_of(wanted, folder, result.folder)
        print(row_of(whose, name, rates=rates, clips_per_s=clips_per_s, first=first), flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.short_context", description=__doc__)
    parser.add_argument("--full-s", type=int, default=4, help="the full context, seconds; 30 takes ten times as long")
    parser.add_argument("--full-steps", type=int, default=800)
    parser.add_argument("--folder", type=Path, help="keeps what is made; what has finished there is not trained again")
    parser.add_argument("--steps", type=int, default=300, help="of each fine-tune")
    parser.add_argument("--smoke", action="store_true", help="next to nothing; the figures mean nothing")
    given = parser.parse_args(arguments)
    if given.smoke:
        given.full_s, given.full_steps, given.steps = 4, 2, 2
    with tempfile.TemporaryDirectory(prefix="rayscribe-bench-") as temporary:
        folder = (given.folder or Path(temporary)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        write_manifests(Path(os.environ["FSDD"]).absolute(), folder)
        whole_model(folder, given)
        columns = [f"{whose}, {length} s" for whose in ("new", "old") for length in (SHORT_S, given.full_s)]
        print(f"| tuned on | what keeps it | {' | '.join(columns)} | clips/s | |\n|---|---|{'---:|' * 6}", flush=True)
        before = short_model(folder, given, "before", "new", {})
        rates = rates_of(before, folder, str(folder / "runs" / "whole"))
        print(row_of("before", "", rates=rates, clips_per_s=None, first=None), flush=True)
        for whose in ("new", "old"):
            tune(folder, given, whose)
    print(f"\n{machine_facts()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
