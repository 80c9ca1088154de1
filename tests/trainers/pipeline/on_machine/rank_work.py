"""What workers do in the tests of worker groups, in their own processes."""

import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from trainers.config.schema import TrainConfig
from trainers.data.sources.recording_readers import Row
from trainers.distributed.session import Session
from trainers.errors import AudioError, DataError, StoppedError


@dataclass(frozen=True)
class Task:
    """A config, and a folder in which workers leave what they have done."""

    config: TrainConfig
    folder: Path

    def starts(self, rank: int) -> int:
        """How many workers of a rank have started, this one counted."""
        (self.folder / f"{rank}-{os.getpid()}").touch()
        return len([*self.folder.glob(f"{rank}-*")])


class KillingReader:
    """Reads recordings whose decoder crashes."""

    def read(self, rows: Sequence[Row]) -> Iterator[bytes | AudioError]:
        os.kill(os.getpid(), signal.SIGKILL)
        yield b""


def meet(task: Task, session: Session) -> None:
    """All ranks know of each other; each prints, and rank 0 shows something."""
    print(f"rank {session.rank} prints", flush=True)
    session.show_from_main(f"met {session.gather((session.rank, torch.get_num_threads()), 'meeting')}")


def crash_once(task: Task, session: Session) -> None:
    """The last rank is killed at its first start, while the others wait for it."""
    if task.starts(session.rank) == 1 and session.rank == session.world_size - 1:
        print("last words", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    session.barrier("meeting")
    session.show_from_main("met")


def crash(task: Task, session: Session) -> None:
    """Is killed at each start."""
    task.starts(session.rank)
    os.kill(os.getpid(), signal.SIGKILL)


def lose_server(task: Task, session: Session) -> None:
    """At the first start, rank 0 kills the process that has started it, and the ranks live on."""
    if task.starts(session.rank) == 1:
        session.barrier("meeting")
        if session.is_main_process:
            os.kill(os.getppid(), signal.SIGKILL)
        while True:
            signal.pause()
    session.show_from_main("met")


def refuse(task: Task, session: Session) -> None:
    """The last rank finds what no restart changes; the others wait for it."""
    task.starts(session.rank)
    if session.rank == session.world_size - 1:
        raise DataError("row 7 is damaged")
    session.barrier("meeting")


def fail(task: Task, session: Session) -> None:
    """A mistake in the code."""
    raise TypeError("no number")


def wait_for_stop(task: Task, session: Session) -> None:
    """Trains until it is asked to stop, and then stores a checkpoint, as it were."""
    with session.stoppable():
        session.barrier("training")
        session.show_from_main("training")
        # Not on a clock: the signal that asks ends the wait.
        while not session.stop_requested():
            signal.sigtimedwait([], 0.05)
        session.barrier("storing")
        raise StoppedError("stopped at step 3")


def score(task: Task, session: Session) -> None:
    """Does what a request to stop does not wait for."""
    session.show_from_main("scoring")
    while True:
        signal.pause()


def orphan(task: Task, session: Session) -> None:
    """Kills its driver, and would live on."""
    (task.folder / "worker").write_text(str(os.getpid()))
    os.kill(int((task.folder / "driver").read_text()), signal.SIGKILL)
    while True:
        signal.pause()
