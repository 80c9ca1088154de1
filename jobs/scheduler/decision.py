"""Input and output of the scheduling policy: rows of the ledger in, a decision out."""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from jobs.scheduler.feasibility import Resources


@dataclass(frozen=True, slots=True)
class Holding:
    """A run that holds its gang. A larger priority goes first; `queued_s` are seconds since 1970."""

    id: str
    queue: str
    user: str
    priority: int
    queued_s: float
    address: str
    need: Resources


@dataclass(frozen=True, slots=True)
class Waiting(Holding):
    """A run that waits to start, for other runs to succeed, or for the time of a retry; its gang as in `GangParts`."""

    per_worker: Resources
    num_workers: int
    depends_on: tuple[str, ...] = ()
    not_before_s: float | None = None
    min_workers: int | None = None


class WaitCause(StrEnum):
    """Cause of a wait, in one word."""

    DEPENDENCY = "dependency"  # another run
    RETRY = "retry"  # the time of its next attempt
    PAUSED = "paused"  # its queue admits none
    CLUSTER = "cluster"  # the cluster does not respond
    INFEASIBLE = "infeasible"  # it needs more than the cluster can have now
    LIMIT = "limit"  # its queue, or its user there, is at the limit
    CAPACITY = "capacity"  # the cluster's resources are in use
    RESERVED = "reserved"  # free resources are reserved for runs ahead of it


class Reason(NamedTuple):
    """Reason of a wait: one word, and one line with what the run needs and which pool has how much."""

    cause: WaitCause
    text: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Why a run does not start now, and its position among the waiting runs of its queue, from 1."""

    run: Waiting
    position: int
    cause: WaitCause
    reason: str


@dataclass
class WaitTotals:
    """Waits of one queue's runs for one cause: number of runs, sum of the waits, and the longest wait. Seconds."""

    runs: int = 0
    seconds: float = 0.0
    longest_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision about the waiting runs: those that start, in this order, those that wait, and those refused."""

    start: tuple[str, ...]
    waits: dict[str, Wait]
    refuse: dict[str, str]

    def wait_totals(self, now_s: float) -> dict[tuple[str, WaitCause], WaitTotals]:
        """Returns the waits by queue and cause."""
        found: dict[tuple[str, WaitCause], WaitTotals] = {}
        for wait in self.waits.values():
            total = found.setdefault((wait.run.queue, wait.cause), WaitTotals())
            waited_s = max(0.0, now_s - wait.run.queued_s)
            total.runs, total.seconds = total.runs + 1, total.seconds + waited_s
            total.longest_s = max(total.longest_s, waited_s)
        return found
