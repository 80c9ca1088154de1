"""Input and output of the scheduling policy: rows of the ledger in, a decision out."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple

from jobs.scheduler.feasibility import Resources


@dataclass(frozen=True, slots=True)
class Holding:
    """A run that holds its gang. The largest priority goes first; `queued_s` is in seconds since 1970."""

    id: str
    queue: str
    user: str
    priority: int
    queued_s: float
    address: str
    need: Resources


@dataclass(frozen=True, slots=True)
class Waiting(Holding):
    """A run that waits for admission, for other runs, or for the time of a retry; with its gang as in `GangParts`."""

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
    """Reason of a wait: one word, and one line with what the run needs and what the pool has."""

    cause: WaitCause
    text: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Reason why a run does not start now, and its position among the waiting runs of its queue, from 1."""

    position: int
    reason: str


@dataclass
class WaitTotals:
    """Waits of one queue's runs for one cause: number of runs, sum of the waits, and the longest wait. Seconds."""

    runs: int = 0
    seconds: float = 0.0
    longest_s: float = 0.0


class WaitReasons(Mapping[str, Wait]):
    """Reasons of waiting runs, computed on access, since thousands may wait and few are read."""

    def __init__(self, runs: Sequence[Waiting], reason_of: Callable[[int], Reason]):
        """Takes the waiting runs in rank order, and a function that returns the reason of the run at an index."""
        self._runs, self._reason_of = runs, reason_of

    def __getitem__(self, run_id: str) -> Wait:
        place, position = self._places[run_id]
        return Wait(position, self._reason_of(place).text)

    def totals(self, now_s: float) -> dict[tuple[str, WaitCause], WaitTotals]:
        found: dict[tuple[str, WaitCause], WaitTotals] = {}
        for place, run in enumerate(self._runs):
            total = found.setdefault((run.queue, self._reason_of(place).cause), WaitTotals())
            waited_s = max(0.0, now_s - run.queued_s)
            total.runs, total.seconds = total.runs + 1, total.seconds + waited_s
            total.longest_s = max(total.longest_s, waited_s)
        return found

    def __iter__(self) -> Iterator[str]:
        return (run.id for run in self._runs)

    def __len__(self) -> int:
        return len(self._runs)

    @cached_property
    def _places(self) -> dict[str, tuple[int, int]]:
        """Index of each run, and its position in its queue; threads may compute it twice, with the same result."""
        last: dict[str, int] = {}
        places = {}
        for place, run in enumerate(self._runs):
            last[run.queue] = position = last.get(run.queue, 0) + 1
            places[run.id] = place, position
        return places


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision: runs that start, in this order, runs that wait, and refused runs with the reason."""

    start: tuple[str, ...]
    waits: WaitReasons
    refuse: dict[str, str]
