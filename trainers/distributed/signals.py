"""What SIGTERM and SIGINT mean to this process: an end at once or, while it trains, after a last checkpoint.

Ray's `job stop` sends SIGTERM to the driver and kills it after RAY_JOB_STOP_WAIT_TIME_S; a user presses Ctrl-C.
Signals belong to a process as a whole, and so does the one `STOP` of this module.
"""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from trainers.errors import Interruption

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stop:
    """Counts the requests to stop. The first waits where somebody listens to it; all others end the process."""

    def __init__(self) -> None:
        """Nobody has asked."""
        self._number = 0
        self._listeners = 0

    @property
    def asked(self) -> bool:
        """Whether somebody has asked to stop."""
        return self._number != 0

    @property
    def exit_code(self) -> int:
        """128 and the number of the signal that asked, as shells have it."""
        return 128 + (self._number or signal.SIGINT)

    @contextlib.contextmanager
    def on_signals(self) -> Iterator[None]:
        """Takes the signals while the block runs; again inside it, where a library has taken them away meanwhile.

        Outside a process's main thread, where Python lets nobody take signals, it does nothing.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._take) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """While the block runs, a first signal only sets `asked`; the block sees to the rest.

        Raises:
            Interruption: at the end of a block that ended well after somebody had asked.
        """
        self._listeners += 1
        try:
            yield
        finally:
            self._listeners -= 1
        if self.asked:
            self.end()

    def end(self) -> None:
        """Ends what the caller does.

        Raises:
            Interruption: always.
        """
        raise Interruption

    def reset(self) -> None:
        """Forgets who has asked."""
        self._number = 0

    def _take(self, number: int, frame: FrameType | None) -> None:
        first = not self.asked
        self._number = number
        if not (first and self._listeners):
            self.end()


STOP = Stop()
