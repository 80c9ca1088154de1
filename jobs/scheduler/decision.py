"""Input and output of the scheduling policy: rows of the ledger in, a decision out."""

from dataclasses import dataclass, field

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


@dataclass(frozen=True, slots=True)
class Wait:
    """Why a run does not start now.

    Attributes:
        position: Its position among the waiting runs of its queue, from 1.
        reason: One line: what it needs and which pool has how much, or what else it waits for.
    """

    position: int
    reason: str


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision about the waiting runs: each is in exactly one of the three.

    Attributes:
        start: Runs to start, in this order.
        waits: Run → why it waits.
        refuse: Run → why it can never start.
    """

    start: tuple[str, ...] = ()
    waits: dict[str, Wait] = field(default_factory=dict)
    refuse: dict[str, str] = field(default_factory=dict)
