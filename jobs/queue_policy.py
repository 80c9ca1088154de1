"""Who starts now: a pure function of the ledger's rows, what the clusters have, and what the queues allow.

The rules, in plain words:

1. **Rank.** A larger priority goes first; among equals, who has waited longer; then the name, so that the same rows
   always give the same decision. A run that has waited longer than `patience_s` goes before all that have not, whatever
   their priorities; among such, who has waited longest. The rank is one for all queues: where two queues share a
   cluster, it decides between them.
2. **All or nothing.** A run starts when its whole gang fits into each of its pools: its user's part of the queue, its
   queue, its cluster with what that can still grow to.
3. **Waiting runs are not overtaken to their harm.** Whoever ranks lower starts ahead of a waiting run only where that
   could not delay it, however long anybody runs (`queue_pools` has the rule). A run stands in the line of a pool when
   the narrower ones have room for it: one that its user's limit holds back keeps nothing of the queue or the cluster.
4. **Who cannot start anyway stands in nobody's way**: who waits for another run, for the time of its retry, for a
   cluster that does not answer, in a queue that is paused, or for more than there can be now.

What follows from them, and is tested:

- A run that stands in the line of its cluster starts no later than if nobody at all were started ahead of another from
  then on, as long as none that ranks higher comes into that line later. Without limits of queues and users, and with
  equal priorities, that is every run, always.
- Whatever comes later, the lower ones that were started while a run stood in line never alone keep it waiting.
- Nobody waits for ever. After `patience_s` only those that were queued earlier rank higher, and they are finitely many.
  For the first of them, the runs that hold its user's, its queue's and its cluster's room when it comes into each line
  have to end: it waits at most three times the length of the longest run.
"""

import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from jobs.model import RunState
from jobs.queue_fit import Capacity, Resources, caps, misfit, never_fits
from jobs.queue_pools import RUNS, Demand, Obstacle, Pool, demand_of
from jobs.queues import Limits, QueuePart, QueuesConfig

__all__ = [
    "Capacity",
    "Decision",
    "Holding",
    "Limits",
    "QueuePart",
    "QueuesConfig",
    "Wait",
    "Waiting",
    "decide",
    "never_fits",
]

Places = tuple[tuple[Pool, Demand], ...]


@dataclass(frozen=True, slots=True)
class Waiting:
    """A run that wants to start.

    Attributes:
        id: The run.
        queue: Its queue.
        user: Who submitted it.
        priority: Larger goes first.
        queued_s: Since when it waits. Seconds since 1970.
        address: The cluster that it wants.
        need: Its whole gang's resources.
        per_worker: Resources of one training worker.
        num_workers: Training workers of the gang.
        depends_on: Runs that must have succeeded before.
        not_before_s: A retry waits until then. None: at any time.
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
        position: Its place among the waiting of its queue, from 1.
        reason: One line: what it needs, which pool has how much, or what else it waits for.
    """

    position: int
    reason: str


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do with the waiting runs: each is in exactly one of the three.

    Attributes:
        start: Runs to start, the first first.
        waits: Run → why it waits.
        refuse: Run → why it can never start.
    """

    start: tuple[str, ...] = ()
    waits: dict[str, Wait] = field(default_factory=dict)
    refuse: dict[str, str] = field(default_factory=dict)


def decide(
    waiting: Iterable[Waiting],
    holding: Iterable[Holding],
    capacity: Mapping[str, Capacity],
    queues: QueuesConfig,
    dependencies: Mapping[str, RunState],
    now_s: float,
) -> Decision:
    """Says of each waiting run whether it starts now, waits, or can never start.

    Args:
        waiting: Runs that want to start, in any order.
        holding: Runs that hold their gang.
        capacity: Clusters that answer, by address.
        queues: Limits and patience.
        dependencies: States of the runs that others depend on.
        now_s: The time. Seconds since 1970.
    """
    pools = _Pools(capacity, queues)
    for held in holding:
        for pool, demand in pools.places(held):
            pool.hold(demand)
    start: list[str] = []
    refuse: dict[str, str] = {}
    stuck: list[tuple[Waiting, str | Obstacle]] = []
    for run in ranked(waiting, queues.patience_s, now_s):
        failed = _failed_dependency(run, dependencies) if run.depends_on else None
        if failed is not None:
            refuse[run.id] = failed
            continue
        obstacle = _not_yet(run, dependencies, now_s) or _enter(run, pools.standing(run))
        if obstacle is None:
            start.append(run.id)
        else:
            stuck.append((run, obstacle))
    return Decision(tuple(start), _waits(stuck), refuse)


def ranked(waiting: Iterable[Waiting], patience_s: float, now_s: float) -> list[Waiting]:
    """Who goes first: the overdue by their time, then the others by priority, time and name."""
    by_time = sorted(waiting, key=attrgetter("queued_s", "id"))
    since_s = now_s - patience_s
    overdue = [run for run in by_time if run.queued_s < since_s]
    patient = [run for run in by_time if run.queued_s >= since_s]
    return overdue + sorted(patient, key=attrgetter("priority"), reverse=True)  # equals keep their order


def _not_yet(run: Waiting, dependencies: Mapping[str, RunState], now_s: float) -> str | None:
    """What has to happen elsewhere before the run may start."""
    for name in run.depends_on:
        state = dependencies.get(name)
        if state is None:
            return f"waits for run {name}, which this ledger does not know: stop this run, or submit {name}"
        if state != RunState.SUCCEEDED:
            return f"waits for run {name} ({state})"
    if run.not_before_s is not None and run.not_before_s > now_s:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(math.ceil(run.not_before_s)))
        return f"tries again at {at} UTC"
    return None


def _failed_dependency(run: Waiting, dependencies: Mapping[str, RunState]) -> str | None:
    for name in run.depends_on:
        state = dependencies.get(name)
        if state in (RunState.FAILED, RunState.STOPPED):
            return f"depends on run {name}, which is {state}: resume {name} first, then this run"
    return None


def _enter(run: Waiting, standing: "str | Places") -> str | Obstacle | None:
    """Starts the run, or has room kept for it in each pool whose line it stands in; None where it starts."""
    if isinstance(standing, str):
        return standing
    for line, (pool, demand) in enumerate(standing, start=1):
        obstacle = pool.obstacle(demand)
        if obstacle is not None:
            for narrow, its_demand in standing[:line]:
                narrow.keep_for(run.id, its_demand)
            return obstacle
    for pool, demand in standing:
        pool.hold(demand)
    return None


def _waits(stuck: Sequence[tuple[Waiting, str | Obstacle]]) -> dict[str, Wait]:
    """Positions and reasons, said after all have started, so that what is called free is free."""
    positions: Counter[str] = Counter()
    waits = {}
    for run, obstacle in stuck:
        positions[run.queue] += 1
        waits[run.id] = Wait(positions[run.queue], obstacle if isinstance(obstacle, str) else obstacle.text())
    return waits


@dataclass(frozen=True, slots=True)
class _Kind:
    """What runs of the same queue, cluster and gang have in common.

    Attributes:
        hopeless: Why none could start even if nobody else were there; None where they could.
        own: What each takes of its user's part of the queue. None: users have no limits.
        shared: What each takes of its queue and its cluster.
    """

    hopeless: str | None
    own: Demand | None
    shared: Places


class _Pools:
    """Every pool that a run may need, made when first asked for; what runs of one kind have in common is found once."""

    def __init__(self, capacity: Mapping[str, Capacity], queues: QueuesConfig):
        self._capacity, self._queues = capacity, queues
        self._clusters = {address: Pool("the cluster", item.size) for address, item in capacity.items()}
        self._shared = {
            name: Pool(f"queue {name}", sizes, "it allows")
            for name, part in queues.queues.items()
            if (sizes := _sizes(part))
        }
        self._own: dict[tuple[str, str], Pool] = {}
        self._own_sizes = {name: _sizes(part.per_user) for name, part in queues.queues.items()}
        self._kinds: dict[object, _Kind] = {}
        self._room: dict[object, float] = {}

    def standing(self, run: Waiting) -> str | Places:
        """What a run takes of each of its pools, or why it could not start even if nobody else were there."""
        need, per_worker = tuple(run.need.items()), tuple(run.per_worker.items())
        key = (run.queue, run.address, run.num_workers, need, per_worker)
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = self._kind(run)
        return kind.hopeless or self._with_own(run, kind.own, kind.shared)

    def places(self, run: Waiting | Holding) -> Places:
        """What a run takes of each of its pools, the narrowest first; pools without limits are left out."""
        return self._with_own(run, *self._demands(run))

    def _with_own(self, run: Waiting | Holding, own: Demand | None, shared: Places) -> Places:
        if own is None:
            return shared
        pool = self._own.get((run.queue, run.user))
        if pool is None:
            name, by = f"user {run.user} in queue {run.queue}", f"queue {run.queue} allows each user"
            pool = self._own[run.queue, run.user] = Pool(name, self._own_sizes[run.queue], by)
        return ((pool, own), *shared)

    def _demands(self, run: Waiting | Holding) -> tuple[Demand | None, Places]:
        counted = {"GPU": run.need.get("GPU", 0.0), "CPU": run.need.get("CPU", 0.0), RUNS: 1.0}
        own, queue = self._own_sizes.get(run.queue), self._shared.get(run.queue)
        cluster = self._clusters.get(run.address)
        shared = ((queue, counted), (cluster, run.need))
        return (
            demand_of(counted, own) if own else None,
            tuple((pool, demand_of(need, pool.size)) for pool, need in shared if pool is not None),
        )

    def _kind(self, run: Waiting) -> _Kind:
        own, shared = self._demands(run)
        fits = (
            run.queue in self._queues.queues
            and run.address in self._capacity
            and all(value <= self._own_sizes[run.queue][name] for name, value in own or ())
            and all(value <= pool.size[name] for pool, demand in shared for name, value in demand)
            and all(name in self._clusters[run.address].size for name, value in run.need.items() if value > 0)
            and self._most_workers(run) >= run.num_workers
        )
        return _Kind(None if fits else self._why_hopeless(run), own, shared)

    def _most_workers(self, run: Waiting) -> float:
        key = (run.address, tuple(run.per_worker.items()))
        if key not in self._room:
            self._room[key] = self._capacity[run.address].places(run.per_worker)
        return self._room[key]

    def _why_hopeless(self, run: Waiting) -> str | None:
        capacity = self._capacity.get(run.address)
        part = self._queues.queues.get(run.queue)
        if part is not None and part.max_running == 0:
            return f"queue {run.queue} is paused (max_running: 0)"
        if part is not None and part.per_user.max_running == 0:
            return f"queue {run.queue} is paused for every user (per_user.max_running: 0)"
        if capacity is None:
            return f"waits for the cluster at {run.address}, which does not answer"
        return misfit(run.need, run.per_worker, run.num_workers, run.queue, self._queues, capacity, run.address)


def _sizes(limits: Limits) -> dict[str, float]:
    """The pool that limits make; empty where there are none."""
    running = {} if limits.max_running is None else {RUNS: float(limits.max_running)}
    return {**caps(limits), **running}
