"""What a service answers with beside runs, attempts and events: parts of lists, logs, hours. Frozen."""

from typing import Literal

from jobs.model import Record, Run

UsageBy = Literal["run", "attempt", "user", "queue", "tag"]


class Page(Record):
    """A part of a list.

    Attributes:
        runs: Newest submitted first.
        next_cursor: Gives the next part. None: this is the last.
    """

    runs: list[Run]
    next_cursor: str | None


class LogLine(Record):
    """A line, and who printed it: `driver` or `rank-<n>`."""

    source: str
    text: str


class LogPage(Record):
    """A stretch of an attempt's logs.

    Attributes:
        attempt: Number of the attempt.
        lines: What is new since the cursor.
        cursor: Where to go on.
        ended: Whether nothing more will come.
    """

    attempt: int
    lines: list[LogLine]
    cursor: str
    ended: bool


class Usage(Record):
    """What attempts have held.

    Attributes:
        key: The run, submission id, user, queue or tag; "" stands for runs without a tag.
        attempts: How many.
        wall_hours: Sum of their durations.
        cpu_hours: Sum of duration × CPUs of the gang, in Ray's logical CPUs.
        gpu_hours: The same of GPUs.
    """

    key: str
    attempts: int
    wall_hours: float
    cpu_hours: float
    gpu_hours: float
