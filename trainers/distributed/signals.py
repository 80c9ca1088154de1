"""Handles SIGTERM, SIGINT and SIGHUP: the process ends immediately or, during training, after a last checkpoint.

Ray's `job stop` sends SIGTERM to the driver and kills it after RAY_JOB_STOP_WAIT_TIME_S; a user presses Ctrl-C, or
closes the terminal, which sends SIGHUP. An ignored SIGHUP, as under nohup, stays ignored. Since signals belong to the
process, there is one instance for it, `STOP_SIGNAL`. `exit_code_of` returns the exit code of a command.
"""

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from trainers.distributed.console import print_line
from trainers.errors import Interruption, RayscribeError, StoppedError, StorageError, refused_by_disk

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# Shown by a driver whose workers train or run a program.
STOPPING = "stopping: waiting for a last checkpoint; a second request ends at once"


class StopSignal:
    """The stop signals of this process. The first signal may be deferred; all others end the process."""

    def __init__(self) -> None:
        self._number = 0
        self._deferring = 0

    @property
    def received(self) -> bool:
        return self._number != 0

    @property
    def exit_code(self) -> int:
        """128 plus the number of the signal, as in shells."""
        return 128 + (self._number or signal.SIGINT)

    @contextlib.contextmanager
    def on_signals(self) -> Iterator[None]:
        """Handles the signals while the block runs; may be nested, in case a library replaces the handlers.

        Does nothing outside the main thread, where Python does not allow signal handlers.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        handled = [each for each in SIGNALS if each != signal.SIGHUP or signal.getsignal(each) != signal.SIG_IGN]
        before = {number: signal.signal(number, self._handle) for number in handled}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """Defers a first signal while the block runs: it only sets `received`, which the block checks.

        Raises:
            Interruption: the block has completed, but a signal was received.
        """
        self._deferring += 1
        try:
            yield
        finally:
            self._deferring -= 1
        if self.received:
            self.end()

    def end(self) -> None:
        """Ends the process by raising an Interruption."""
        raise Interruption

    def reset(self) -> None:
        self._number = 0

    def _handle(self, number: int, frame: FrameType | None) -> None:
        first = not self.received
        if number == signal.SIGHUP and not first:
            # Both the system and the shell send it when a terminal is closed.
            return
        self._number = number
        if not (first and self._deferring):
            self.end()


STOP_SIGNAL = StopSignal()


def ending_of(error: BaseException) -> tuple[int, str] | None:
    """Returns exit code and message of a command that ends with an error; None if the error is unexpected."""
    if isinstance(error, KeyboardInterrupt):
        return STOP_SIGNAL.exit_code, str(error if isinstance(error, Interruption) else Interruption())
    if isinstance(error, RayscribeError):
        return STOP_SIGNAL.exit_code if isinstance(error, StoppedError) else error.exit_code, str(error)
    text = refused_by_disk(error) if isinstance(error, OSError) else None
    return (StorageError.exit_code, text) if text is not None else None


def exit_code_of(work: Callable[[], int]) -> int:
    """Runs a command; prints one message for an expected error, and returns the exit code."""
    STOP_SIGNAL.reset()
    with STOP_SIGNAL.on_signals():
        try:
            return work()
        except (KeyboardInterrupt, RayscribeError, OSError) as error:
            if (ending := ending_of(error)) is None:
                raise
            code, text = ending
            is_stop = isinstance(error, KeyboardInterrupt | StoppedError)
            print_line(text if is_stop else f"error: {text}", sys.stderr)
            return code
