"""Programs under plain torchrun: two processes on this machine."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
import pytest

from tests.integration.made_once import made_once
from tests.programs.known_programs import PROGRAMS

TIMEOUT_S = 240.0
# At a port of its own; no restarts.
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")


class Torchrun:
    """torchrun on a program in a folder, whose output goes to a file next to it."""

    def __init__(self, folder: Path, words: Sequence[str], **environment: str):
        """Starts it."""
        self.log = folder / "torchrun.log"
        variables = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **environment}
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [*TORCHRUN, *words], cwd=folder, env=variables, stdout=log, stderr=subprocess.STDOUT
            )

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def wait(self) -> int:
        """Its exit code; whatever still runs then is killed."""
        try:
            return self._process.wait(TIMEOUT_S)
        finally:
            if self._process.poll() is None:
                self.kill_ranks()
                self._process.kill()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Waits for a condition while it runs."""
        end = time.monotonic() + TIMEOUT_S
        while not condition():
            assert self._process.poll() is None and time.monotonic() < end, self.output
            time.sleep(0.02)

    def kill_ranks(self) -> None:
        """SIGKILL for all processes of the program."""
        for process in psutil.Process(self._process.pid).children(recursive=True):
            process.kill()

    def terminate(self) -> None:
        """SIGTERM, which torchrun passes on."""
        self._process.send_signal(signal.SIGTERM)


def undisturbed(name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a program that has ended well; each is run once in a test session."""

    def make(folder: Path) -> None:
        ranks = Torchrun(PROGRAMS[name].copy_to(folder), PROGRAMS[name].command)
        assert ranks.wait() == 0, ranks.output

    return made_once(f"torchrun-{name}", make, tmp_path_factory)
