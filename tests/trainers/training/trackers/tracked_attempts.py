"""Attempts of a made-up run that log lines of metrics as training does, and are fed to trackers."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.trainers.run_folder.writers import EXPERIMENT
from trainers.run_folder.fencing import GroupWriter
from trainers.run_folder.layout import now
from trainers.storage.json_files import to_json
from trainers.training.callbacks import MetricsLog
from trainers.training.trackers.tracker_feed import TrackedRun, Tracker, TrackerFiles, Trackers

SCORED_EVERY = 3
CONFIG = {"model": {"family": "whisper"}, "training": {"learning_rate": 1e-4, "max_steps": 9}}
# Steps of an attempt that is killed, whose last checkpoint is of step 3, and of the one that goes on from there.
KILLED, RESUMED = range(1, 6), range(4, 10)


class KilledError(Exception):
    """An attempt has failed."""


def trackers_of(
    writer: GroupWriter, staging: Path, trackers: dict[str, Tracker], said: list[str] | None = None
) -> Trackers:
    """Trackers as a worker has them."""
    run = TrackedRun(EXPERIMENT["id"], "digits", CONFIG, TrackerFiles(writer.folder, staging))
    return Trackers(trackers, run, writer, print if said is None else said.append)


def lines_of(attempt: int, steps: Iterable[int]) -> Iterable[dict[str, Any]]:
    """A loss at each step and a score at each third; speeds differ between attempts."""
    for step in steps:
        origin = {"step": step, "epoch": step / 10, "attempt": attempt, "time": now()}
        yield {**origin, "loss": 10.0 - step, "clips_per_s": 100.0 * attempt}
        if step % SCORED_EVERY == 0:
            yield {**origin, "eval_wer": 50.0 - step}


def log_steps(writer: GroupWriter, trackers: Trackers, steps: Iterable[int]) -> None:
    """Logs the steps."""
    log = MetricsLog(writer, print, trackers.send)
    for line in lines_of(writer.attempt, steps):
        log.write(line)
    log.flush()


def run_killed(writer: GroupWriter, trackers: Trackers) -> None:
    """An attempt that fails between its checkpoints."""
    try:
        with trackers:
            log_steps(writer, trackers, KILLED)
            raise KilledError
    except KilledError:
        pass


def run_resumed(writer: GroupWriter, trackers: Trackers) -> None:
    """An attempt that goes on from step 3 to the end of the run."""
    with trackers:
        log_steps(writer, trackers, RESUMED)
        trackers.send(to_json({"step": 9, "time": now(), "test_wer": 5.0}, "metrics"))


# What a tracker has of the run after both: each step's loss once, each score once.
LOSSES = [(step, 10.0 - step) for step in range(1, 10)]
SCORES = [(3, 47.0), (6, 44.0), (9, 41.0)]
TEST = [(9, 5.0)]
