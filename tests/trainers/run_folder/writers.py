"""Drivers and worker groups of made-up attempts, opened in a journal as real ones are."""

from pathlib import Path
from typing import Any

from trainers.run_folder.fencing import Driver, GroupWriter
from trainers.run_folder.journal import Journal, State
from trainers.run_folder.layout import RunFolder
from trainers.run_folder.staging import stage

EXPERIMENT: dict[str, Any] = {"id": "e1", "experiment": {"run.seed": 42}}


def same_experiment(state: State) -> dict[str, Any]:
    """Every attempt of a test is of one experiment."""
    return EXPERIMENT


def begin(folder: RunFolder, number: int | None = None) -> Driver:
    """A driver that has begun an attempt."""
    driver = Driver.open(folder, Journal(folder), number, same_experiment)
    assert driver is not None
    return driver


def group_of(driver: Driver, name: str) -> GroupWriter:
    """A worker group of a driver's attempt that has opened."""
    writer = GroupWriter.of(driver.folder, driver.attempt, name)
    writer.open(1)
    return writer


def first_group(folder: RunFolder, name: str = "x") -> GroupWriter:
    """The first worker group of a run's first attempt."""
    return group_of(begin(folder), name)


def staged(staging: Path, step: int, wer: float = 10.0, name: str = "a1-x") -> Path:
    """A whole staged checkpoint, of the attempt and group in its name."""
    path = staging / f"checkpoint-{step}-{name}"
    path.mkdir(parents=True)
    (path / "model.safetensors").write_bytes(bytes(range(256)) * step)
    (path / "optimizer.pt").write_bytes(b"state")
    stage(path, step=step, attempt=int(name[1]), metrics={"eval_wer": wer})
    return path
