"""One side of a comparison: its processes, its turns and its memory, as the benchmark sees them."""

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any

import psutil

from tests.benchmarks.comparison.turns import GO, KEY, STOP

ROOT = Path(__file__).resolve().parents[3]
SAMPLE_EVERY_S = 0.2
START_WITHIN_S = 300
# Processes of Ray, Ray Data and Ray Train that run no code of their users: the beginnings of their names.
RAYS_OWN = (
    "raylet",
    "gcs_server",
    "log_monitor.py",
    "monitor.py",
    "dashboard.py",
    "agent.py",
    "main.py",
    "ray-dashboard",
    "ray::DashboardAgent",
    "ray::RuntimeEnvAgent",
    "ray::DatasetManager",
    "ray::PlacementGroupCleaner",
    "ray::PreemptionWatcher",
    "ray::SynchronizationActor",
    "ray::_AutoscalingCoordinatorActor",
    "ray::_StatsActor",
)


class SideError(Exception):
    """A side ended before its turns; the text is the end of what it said."""


@dataclass
class Side:
    """A side that runs.

    Attributes:
        name: What it is called in the report.
        process: The first of its processes.
        log: What they say.
        listener: Where rank 0 comes to.
        line: Its line, once it came.
        turns: AttemptTotals of each turn.
        peak: Resident bytes of its processes, (name, bytes), when their sum without Ray's own was at its peak; what
            several share counts in each.
    """

    name: str
    process: psutil.Popen
    log: Path
    listener: Listener
    line: Connection | None = None
    turns: list[dict[str, Any]] = field(default_factory=list)
    peak: list[tuple[str, int]] = field(default_factory=list)

    @classmethod
    def start(
        cls,
        name: str,
        module: str,
        arguments: Sequence[str],
        *,
        folder: Path,
        ranks: int,
        python: Path = Path(sys.executable),
    ) -> "Side":
        """Starts `python -m module … --turns ADDRESS`, under torchrun where there are several ranks."""
        slug = f"{name}-{time.monotonic_ns()}"
        listener = Listener(str(folder / f"{time.monotonic_ns()}.sock"), authkey=KEY)
        # The listener has no timeout of its own, and a side that fails never comes.
        listener._listener._socket.settimeout(1)  # type: ignore[attr-defined]
        start = [str(python), "-m"]
        if ranks > 1:
            start += ["torch.distributed.run", f"--master-port={_free_port()}", f"--nproc-per-node={ranks}", "-m"]
        log = folder / f"{slug}.log"
        with log.open("wb") as file:
            process = psutil.Popen(
                [*start, module, *arguments, "--turns", str(listener.address)],
                cwd=ROOT,
                env=environment_of_sides(),
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        return cls(name, process, log, listener)

    def ready(self) -> None:
        """Waits until it has loaded and warmed up.

        Raises:
            SideError: it ended instead, or took too long.
        """
        deadline = time.monotonic() + START_WITHIN_S
        with self._memory():
            while self.line is None:
                try:
                    self.line = self.listener.accept()
                except TimeoutError:
                    if self.process.poll() is not None or time.monotonic() > deadline:
                        raise self._failure("did not come to its first turn") from None

    def turn(self) -> dict[str, Any]:
        """Lets it take one turn, and gives back what it measured.

        Raises:
            SideError: it ended instead.
        """
        assert self.line is not None
        with self._memory():
            try:
                self.line.send(GO)
                figures: dict[str, Any] = self.line.recv()
            except (EOFError, OSError):
                raise self._failure("ended in its turn") from None
        self.turns.append(figures)
        return figures

    def finish(self) -> None:
        """Tells it that there are no more turns and waits for its end.

        Raises:
            SideError: it failed.
        """
        assert self.line is not None
        with contextlib.suppress(OSError), self._memory():
            self.line.send(STOP)
        if self.process.wait() != 0:
            raise self._failure("failed after its last turn")

    def close(self) -> None:
        """Ends what is left of it."""
        for process in self._tree():
            with contextlib.suppress(psutil.Error):
                process.kill()
        self.listener.close()

    def total(self, name: str) -> float:
        """Sum of a figure over its turns."""
        return float(sum(turn[name] for turn in self.turns))

    def _failure(self, what: str) -> SideError:
        return SideError(f"{self.name} {what}:\n{self.log.read_text(errors='replace')[-3000:]}")

    def _tree(self) -> list[psutil.Process]:
        try:
            return [self.process, *self.process.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    @contextlib.contextmanager
    def _memory(self) -> Iterator[None]:
        done = threading.Event()

        def watch() -> None:
            while not done.wait(SAMPLE_EVERY_S):
                sizes = [size for process in self._tree() if (size := _resident_memory(process)) is not None]
                self.peak = max(self.peak, sizes, key=without_rays_own)

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


def environment_of_sides() -> dict[str, str]:
    """This process's, with one thread a rank, and neither network nor another Ray."""
    variables = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    return {**{name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}, **variables}


@contextlib.contextmanager
def running(sides: Sequence[Side]) -> Iterator[None]:
    """Waits for all sides to be ready; at the end none of them is left."""
    try:
        for side in sides:
            side.ready()
        yield
        for side in sides:
            side.finish()
    finally:
        for side in sides:
            side.close()


def alternate(sides: Sequence[Side], rounds: int) -> None:
    """Lets the sides take turns; every other round goes backwards, so that no side always follows the same one."""
    for number in range(rounds):
        for side in sides if number % 2 == 0 else reversed(sides):
            side.turn()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def without_rays_own(sizes: Sequence[tuple[str, int]]) -> int:
    """Bytes of all processes that run a program's code, workers that wait for more of it among them."""
    return sum(size for name, size in sizes if not is_rays_own(name))


def is_rays_own(name: str) -> bool:
    """Whether a process runs nothing but Ray."""
    return name.startswith(RAYS_OWN)


def _resident_memory(process: psutil.Process) -> tuple[str, int] | None:
    try:
        return _name_of(process.cmdline()), int(process.memory_info().rss)
    except psutil.Error:  # it has just ended
        return None


def _name_of(command: Sequence[str]) -> str:
    """What a process is called: its title, its program, or the module or script that its Python runs."""
    words = " ".join(command).split()
    program = Path(words[0]).name if words else ""
    if not program.startswith("python"):
        return program
    scripts = [word for word in words[1:] if not word.startswith("-")]
    return Path(scripts[0]).name if scripts else program
