"""Input and output of the scheduling policy: rows of the ledger in, a decision out."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from jobs.scheduler.feasibility import Amounts, Resources


@dataclass(frozen=True, slots=True)
class Waiting:
    """A run that waits to start.

    Attributes:
        id: The run.
        queue: Its queue.
        user: Who submitted it.
        priority: Larger goes first.
        queued_s: When it was queued. Seconds since 1970.
        address: Its cluster.
        need: Resources of its whole gang.
        per_worker: Resources of one training worker.
        num_workers: Training workers of the gang.
        depends_on: Runs that must have succeeded before.
        not_before_s: Earliest start of a retry. None: at any time.
        min_workers: The fewest workers of an elastic run, for the message. None: their number is fixed.
    """

    id: str
    queue: str
    user: str
    priority: int
    queued_s: float
    address: str
    need: Resources
    per_worker: Resources
    num_workers: int
    depends_on: tuple[str, ...] = ()
    not_before_s: float | None = None
    min_workers: int | None = None

    def __post_init__(self) -> None:
        """Makes the amounts comparable by value."""
        object.__setattr__(self, "need", Amounts.of(self.need))
        object.__setattr__(self, "per_worker", Amounts.of(self.per_worker))


@dataclass(frozen=True, slots=True)
class Holding:
    """A run that holds its gang; fields as of Waiting."""

    id: str
    queue: str
    user: str
    priority: int
    queued_s: float
    address: str
    need: Resources


class WaitCause(StrEnum):
    """What a run waits for, in one word."""

    DEPENDENCY = "dependency"  # another run
    RETRY = "retry"  # the time of its next attempt
    PAUSED = "paused"  # its queue takes nothing
    CLUSTER = "cluster"  # the cluster does not respond
    INFEASIBLE = "infeasible"  # it needs more than there can be now
    LIMIT = "limit"  # what its queue, or its user in it, may hold is held
    CAPACITY = "capacity"  # what the cluster has is held
    RESERVED = "reserved"  # what is free is reserved for runs ahead of it


class Reason(NamedTuple):
    """Why a run waits.

    Attributes:
        cause: In one word.
        text: In one line: what it needs and which pool has how much, or what else it waits for.
    """

    cause: WaitCause
    text: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Why a run does not start now.

    Attributes:
        position: Its position among the waiting runs of its queue, from 1.
        reason: See `Reason.text`.
    """

    position: int
    reason: str


@dataclass
class WaitTotals:
    """The runs of one queue that wait for one cause now.

    Attributes:
        runs: How many.
        seconds: How long they have waited, added up.
        longest_s: How long the one has waited that was queued first.
    """

    runs: int = 0
    seconds: float = 0.0
    longest_s: float = 0.0


class Waits(Mapping[str, Wait]):
    """Run → why it waits; worked out when it is read, since thousands wait and few are asked about."""

    __slots__ = ("_counted", "_reason_of", "_runs")

    def __init__(self, runs: Sequence[Waiting] = (), reason_of: Callable[[int], Reason] | None = None):
        """Takes the runs that wait in the order of rank, and what gives the reason of the one at a place of it."""
        self._runs, self._reason_of = runs, reason_of
        # Place of each run among all, and the position in its queue at each place.
        self._counted: tuple[dict[str, int], list[int]] | None = None

    def __getitem__(self, run_id: str) -> Wait:
        if self._counted is None:
            # Several threads may count at once, and come to the same.
            self._counted = self._count()
        places, positions = self._counted
        place = places[run_id]
        return Wait(positions[place], self._reason(place).text)

    def totals(self, now_s: float) -> dict[tuple[str, WaitCause], WaitTotals]:
        """The runs that wait, by queue and cause.

        Args:
            now_s: The time. Seconds since 1970.
        """
        found: dict[tuple[str, WaitCause], WaitTotals] = {}
        for place, run in enumerate(self._runs):
            total = found.setdefault((run.queue, self._reason(place).cause), WaitTotals())
            waited_s = max(0.0, now_s - run.queued_s)
            total.runs, total.seconds = total.runs + 1, total.seconds + waited_s
            total.longest_s = max(total.longest_s, waited_s)
        return found

    def _reason(self, place: int) -> Reason:
        assert self._reason_of is not None, "runs wait, and nothing says why"
        return self._reason_of(place)

    def __iter__(self) -> Iterator[str]:
        return (run.id for run in self._runs)

    def __len__(self) -> int:
        return len(self._runs)

    def __repr__(self) -> str:
        return repr(dict(self))

    def _count(self) -> tuple[dict[str, int], list[int]]:
        last: dict[str, int] = {}
        positions = []
        for run in self._runs:
            last[run.queue] = position = last.get(run.queue, 0) + 1
            positions.append(position)
        return {run.id: place for place, run in enumerate(self._runs)}, positions


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision about the waiting runs: each is in exactly one of the three.

    Attributes:
        start: Runs to start, in this order.
        waits: Run → why it waits.
        refuse: Run → why it can never start.
    """

    start: tuple[str, ...] = ()
    waits: Waits = field(default_factory=Waits)
    refuse: dict[str, str] = field(default_factory=dict)
