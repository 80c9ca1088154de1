"""Runs a step as processes of its own, takes the figures that it wrote, and watches the memory of all of them."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.benchmarks.sizes import RANKS

ROOT = Path(__file__).resolve().parents[2]
SAMPLE_EVERY_S = 0.25


class StepError(Exception):
    """A step ended without its figures; the text is the end of what it said."""


@dataclass(frozen=True)
class Done:
    """What a step came to.

    Attributes:
        figures: What it wrote itself, measured from inside.
        largest_bytes: Peak resident memory of its largest process, pages of mapped files included.
        sum_bytes: Peak of the sum over its processes; pages that several share count in each.
        wall_s: Seconds from start to end, imports and all.
    """

    figures: dict[str, Any]
    largest_bytes: int
    sum_bytes: int
    wall_s: float


def run_step(module: str, arguments: Sequence[str], *, folder: Path, ranks: int = 1) -> Done:
    """Runs `python -m module … --out FILE`, under torchrun where there are several ranks.

    Raises:
        StepError: it failed, or wrote nothing.
    """
    out = folder / f"{module.rpartition('.')[2]}-{arguments[0]}-{time.monotonic_ns()}.json"
    start = [sys.executable, "-m"]
    if ranks > 1:
        start += ["torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}", "-m"]
    command = [*start, module, *arguments, "--out", str(out)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    environment.pop("RAY_ADDRESS", None)
    log_path = out.with_suffix(".log")
    began = time.monotonic()
    with log_path.open("wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT)
        with _Memory(process.pid) as memory:
            code = process.wait()
    if code != 0 or not out.exists():
        tail = log_path.read_text(errors="replace")[-3000:]
        raise StepError(f"{' '.join(command)}\nended with code {code}:\n{tail}")
    figures = json.loads(out.read_text())
    return Done(figures, memory.largest_bytes, memory.sum_bytes, time.monotonic() - began)


def write_figures(out: Path, figures: dict[str, Any]) -> None:
    """Hands figures to the process that started this step."""
    out.write_text(json.dumps(figures))


def ranks_of(arguments: Sequence[str]) -> int:
    """How many processes a step wants: `prepare` of Rayscribe is a driver, `fit` starts its own workers."""
    return 1 if arguments[0] in ("model", "prepare", "fit") else RANKS


class _Memory:
    """Peaks of resident memory of a process and all that it started, while the block runs."""

    def __init__(self, pid: int):
        self._root = psutil.Process(pid)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.largest_bytes = 0
        self.sum_bytes = 0

    def __enter__(self) -> "_Memory":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(SAMPLE_EVERY_S):
            sizes = [_resident_bytes(process) for process in self._tree()]
            self.largest_bytes = max([self.largest_bytes, *sizes])
            self.sum_bytes = max(self.sum_bytes, sum(sizes))

    def _tree(self) -> list[psutil.Process]:
        try:
            return [self._root, *self._root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []


def _resident_bytes(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:  # it has just ended
        return 0
