"""What training workers and their driver tell each other: one board between them, an actor on the driver's node.

Needs no Ray itself, so that the core runs on a machine without it.
"""

from dataclasses import dataclass

# How far the workers are: none has started yet, or all are to be started again; they work, and a request to stop ends
# them at once; they train, and a request to stop waits for their last checkpoint.
WAITING, WORKING, STOPPABLE = "waiting", "working", "stoppable"


@dataclass(frozen=True)
class News:
    """What the driver has not read yet.

    Attributes:
        lines: For the person who waits.
        workers: How far the workers are; None where nobody has said, since the board is new.
    """

    lines: list[str]
    workers: str | None


class Board:
    """Holds what was said until it is read."""

    def __init__(self) -> None:
        """Nothing is on it."""
        self._lines: list[str] = []
        self._workers: str | None = None
        self._stop_asked = False

    def put(self, line: str) -> None:
        """A worker says a line."""
        self._lines.append(line)

    def enter(self, workers: str) -> None:
        """The workers come to another part of their work."""
        self._workers = workers

    def take(self) -> News:
        """The driver reads what is new."""
        lines, self._lines = self._lines, []
        return News(lines, self._workers)

    def ask_stop(self) -> None:
        """The driver passes on that somebody asks to stop."""
        self._stop_asked = True

    def is_stop_asked(self) -> bool:
        """Whether somebody asks to stop."""
        return self._stop_asked
