"""Processes forked from a server that has imported what takes seconds of processor time to import, once for all."""

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

REPOSITORY = Path(__file__).resolve().parents[2]
# Of task.py on Ray and without, and of a controller.
PRELOADED = [
    "trainers.main",
    "trainers.pipeline.on_ray.ray_engine",
    "trainers.training.worker",
    "jobs.service.controller",
]
Main = Callable[[Sequence[str]], int | None]


class ForkedProcess:
    """A main function in a process of its own, at the repository's root; otherwise like `subprocess.Popen`.

    Attributes:
        pid: Its process id.
    """

    def __init__(self, main: Main, arguments: Sequence[str], *, environment: Mapping[str, str], log: Path):
        """Starts it.

        Args:
            main: Function of a module; gives back the exit code.
            arguments: Its arguments.
            environment: All of its environment variables.
            log: File to which its output is appended.
        """
        multiprocessing.set_forkserver_preload(PRELOADED)
        context = multiprocessing.get_context("forkserver")
        self._process = context.Process(target=_run, args=(main, list(arguments), dict(environment), log))
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    @property
    def returncode(self) -> int | None:
        """Exit code, or minus the signal that ended it; None while it lives."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """See `returncode`."""
        return self.returncode

    def wait(self, timeout_s: float | None = None) -> int:
        """Waits for its end.

        Raises:
            TimeoutError: it lives on.
        """
        self._process.join(timeout_s)
        if self.returncode is None:
            raise TimeoutError(f"process {self.pid} has not ended in {timeout_s} s")
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        """Sends it a signal, if it lives."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


def _run(main: Main, arguments: list[str], environment: dict[str, str], log: Path) -> None:
    os.chdir(REPOSITORY)
    os.environ.clear()
    os.environ.update(environment)
    if threads := environment.get("OMP_NUM_THREADS"):
        # Otherwise read when torch is imported, which it was in the server.
        torch.set_num_threads(int(threads))
    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(output, sys.stdout.fileno())
    os.dup2(output, sys.stderr.fileno())
    sys.exit(main(arguments))
