"""Runs of task.py in processes of their own, watched by what they write, and killed by process id."""

import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import psutil

from tests.integration.forked_process import ForkedProcess
from tests.metrics_lines import metrics_of
from trainers.main import main
from trainers.run_folder.journal import Checkpoint, Journal
from trainers.run_folder.layout import RunFolder
from trainers.storage import Storage, open_storage

TIMEOUT_S = 600.0


@dataclass(frozen=True)
class RayHead:
    """A Ray whose processes are children of this one.

    Attributes:
        address: What drivers join.
        dashboard: URL of its dashboard, which takes jobs.
    """

    address: str
    dashboard: str

    def training_workers(self) -> list[psutil.Process]:
        """The processes of training workers that live now."""
        found = []
        for process in psutil.Process().children(recursive=True):
            try:
                if any("TrainWorker" in part for part in process.cmdline()):
                    found.append(process)
            except psutil.Error:
                continue
        return found


@dataclass
class Run:
    """One run folder, and the driver that works on it.

    Attributes:
        head: The cluster.
        name: Name of the run.
        storage_path: Where its folder is.
        recipe: The YAML file.
        sets: Overrides.
        log: File that takes what the drivers print.
        seen: Steps that were reported before the last kill.
        poll_s: seconds between two polls; longer for a bucket, whose server shares this process.
    """

    head: RayHead
    name: str
    storage_path: str
    recipe: Path
    sets: Sequence[str]
    log: Path
    driver: ForkedProcess | None = None
    seen: int = 0
    poll_s: float = 0.02

    @cached_property
    def folder(self) -> Storage:
        """The run folder."""
        return open_storage(f"{self.storage_path}/{self.name}")

    @cached_property
    def journal(self) -> Journal:
        """Its journal."""
        return Journal(RunFolder(self.folder))

    @property
    def arguments(self) -> list[str]:
        """Those of task.py."""
        sets = (*self.sets, f"run.name={self.name}", f"run.storage_path={self.storage_path}")
        return ["--config", str(self.recipe), *(part for item in sets for part in ("--set", item))]

    @property
    def environment(self) -> dict[str, str]:
        """The driver's variables."""
        return {**os.environ, "RAY_ADDRESS": self.head.address}

    def start(self) -> None:
        """Starts a driver."""
        self.driver = ForkedProcess(main, self.arguments, environment=self.environment, log=self.log)

    def finish(self) -> None:
        """Waits for the driver to end well."""
        assert self.driver is not None
        code = self.driver.wait(TIMEOUT_S)
        assert code == 0, f"the driver ended with {code}:\n{self.log.read_text()[-4000:]}"

    def metrics(self) -> list[dict[str, Any]]:
        """All lines of metrics that count so far."""
        return metrics_of(RunFolder(self.folder), self.journal.read())

    def steps(self) -> list[int]:
        """Each step whose loss was reported, in the order of reporting."""
        return [line["step"] for line in self.metrics() if "loss" in line]

    def reached(self, step: int) -> bool:
        """Whether training has come this far since the last kill."""
        return max(self.steps()[self.seen :], default=0) >= step

    def checkpoints(self) -> list[Checkpoint]:
        """Complete checkpoints."""
        return list(self.journal.read().checkpoints)

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        """Waits for a condition while the driver lives."""
        end = time.monotonic() + TIMEOUT_S
        while not condition():
            assert self.driver is not None
            code = self.driver.poll()
            assert code is None, f"the driver ended with {code} before {what}:\n{self.log.read_text()[-4000:]}"
            assert time.monotonic() < end, f"no {what} in {TIMEOUT_S} s:\n{self.log.read_text()[-4000:]}"
            time.sleep(self.poll_s)

    def kill_worker(self) -> None:
        """SIGKILL for one training worker, the last in the list."""
        self.seen = len(self.steps())
        self.wait_for(lambda: bool(self.head.training_workers()), "training worker")
        workers = sorted(self.head.training_workers(), key=lambda process: process.pid)
        workers[-1].send_signal(signal.SIGKILL)

    def kill_driver(self) -> None:
        """SIGKILL for the driver; its workers end with it."""
        assert self.driver is not None
        self.seen = len(self.steps())
        self.driver.send_signal(signal.SIGKILL)
        self.driver.wait()
        psutil.wait_procs(self.head.training_workers(), timeout=TIMEOUT_S)
