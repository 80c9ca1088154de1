"""The state that training workers and their driver share: an actor on the driver's node.

Needs no Ray itself, so that the core runs on a machine without it.
"""

from dataclasses import dataclass

# Phases of the workers: none has started yet, or all are being restarted; they work, and a request to stop ends them at
# once; they train, and a request to stop waits for their last checkpoint.
WAITING, WORKING, STOPPABLE = "waiting", "working", "stoppable"


@dataclass(frozen=True)
class WorkerUpdate:
    """What has changed since the driver's last poll.

    Attributes:
        lines: Lines to print.
        phase: Phase of the workers. None: none was set yet.
    """

    lines: list[str]
    phase: str | None


class Coordinator:
    """Holds lines until the driver polls them, the workers' phase, and the request to stop."""

    def __init__(self) -> None:
        """Starts empty."""
        self._lines: list[str] = []
        self._phase: str | None = None
        self._stop_requested = False

    def add_line(self, line: str) -> None:
        """Adds a line that the driver is to print."""
        self._lines.append(line)

    def set_phase(self, phase: str) -> None:
        """Sets the phase of the workers."""
        self._phase = phase

    def poll(self) -> WorkerUpdate:
        """Returns the lines since the last poll, and the phase."""
        lines, self._lines = self._lines, []
        return WorkerUpdate(lines, self._phase)

    def request_stop(self) -> None:
        """Passes a request to stop on to the workers."""
        self._stop_requested = True

    def stop_requested(self) -> bool:
        """Whether a stop was requested."""
        return self._stop_requested
