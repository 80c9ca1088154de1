"""A training worker that is killed in the middle, and has its driver stopped when it has started again."""

import os
import signal
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from trainers.training.loop import Loop
from trainers.training.worker import run_training_worker

KILLED_AFTER, STOPPED_AFTER = 10, 13
TIMEOUT_S = 120.0


class Disturbance(TrainerCallback):
    """Happens between two steps."""

    def __init__(self, driver: int, was_killed: Path):
        self._driver, self._was_killed = driver, was_killed

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == KILLED_AFTER and not self._was_killed.exists():
            self._was_killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if state.global_step == STOPPED_AFTER:
            os.kill(self._driver, signal.SIGTERM)
            end = time.monotonic() + TIMEOUT_S
            while any(thread.name == "last-step" for thread in threading.enumerate()):
                assert time.monotonic() < end
                time.sleep(0.002)


def disturb(driver: int, was_killed: Path, loop: Loop) -> None:
    loop.trainer.add_callback(Disturbance(driver, was_killed))


def disturbed(folder: Path) -> Any:
    """Returns what a worker of this driver runs instead of `run_on_rank`."""
    return partial(run_training_worker, watch=partial(disturb, os.getpid(), folder / "was-killed"))
