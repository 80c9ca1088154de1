"""Pools: limited resources, of which a part is held, and a part is reserved for waiting runs; runs' demands. Pure.

Pools are clusters, queues with limits, and users' parts of queues. A run starts only if its complete gang fits into
each of its pools, and if it cannot delay a waiting run ahead of it.

**Reserving.** The lengths of runs are not known, so a later run j may start ahead of a waiting run h only if h would
start as early even if j ran forever. When h's turn comes, some of the runs ahead of j are running: current holders that
have not ended, and runs ranked above h that have started meanwhile. It is not known which, but together with h they
fit into the pool. So j is harmless if all sets of runs that fit into the pool together with h still fit with j added:

    room(h) = size − need(h) − the sum of everything ahead of h that fits next to h
    j starts only if need(j) ≤ room(h), for each waiting h that ranks above it

Runs that do not fit next to h, like the large run that h waits for, must have ended before h starts; their resources
are the room for back-filling. All others may still be running. A run that starts is subtracted from the room, so that
many small runs together are as harmless as one.

This is conservative back-filling, which protects every waiting run and not only the first, with unknown lengths
instead of users' estimates. Lifka, The ANL/IBM SP Scheduling System, JSSPP 1995; Mu'alem and Feitelson,
Utilization, Predictability, Workloads, and User Runtime Estimates in Scheduling the IBM SP2 with Backfilling, IEEE TPDS
12(6), 2001.
"""

import math
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from types import MappingProxyType
from typing import NamedTuple

from jobs.scheduler.decision import Holding, Reason, WaitCause, Waiting
from jobs.scheduler.feasibility import (
    EPSILON,
    RUNS,
    Capacity,
    GangParts,
    Resources,
    amount,
    caps,
    never_fits,
    number,
)
from jobs.scheduler.limits import Limits, QueuesConfig

# If more runs than this wait for a pool, no later run starts ahead of them, which bounds the cost of a decision, like
# Slurm's bf_max_job_test.
MAX_WAITING = 200


class Demand:
    """Amounts that a run needs of a pool, none of them zero. Equal demands share one object, for fast comparisons."""

    __slots__ = ("amounts", "items")

    def __init__(self, items: tuple[tuple[str, float], ...]):
        self.items, self.amounts = items, dict(items)


class Reservation(NamedTuple):
    """Resources that are reserved for a waiting run, or if `run_id` is None, for the first MAX_WAITING runs."""

    run_id: str | None
    name: str
    value: float


class Blocker(NamedTuple):
    """Reason why a demand does not fit into a pool: a reservation, or if that is None, too little is free."""

    pool: "Pool"
    demand: Demand
    reservation: Reservation | None

    def reason(self) -> Reason:
        """Returns the reason, with the needed amounts, the pool, and the amounts that are free after the pass."""
        found = self.reservation
        if found is None:
            short = self.pool.short(self.demand)
            return Reason(self.pool.cause, _needs(self.demand, short) + self.pool.shortage(short))
        needs = _needs(self.demand, [found.name])
        if found.run_id is None:
            text = f"{needs}behind {MAX_WAITING} runs that wait for {self.pool.name}"
        else:
            reserved, verb = amount(found.name, found.value), "is" if found.value == 1 else "are"
            text = f"{needs}behind {found.run_id}, for which {reserved} of {self.pool.name} {verb} reserved"
        return Reason(WaitCause.RESERVED, text)


class HigherRankedDemands:
    """Demands ahead of a run in a pool, of both running and waiting runs.

    Keeps sums and sorted amounts, so that demands that do not fit next to another are found without iterating over
    the thousands that do.
    """

    __slots__ = ("_counts", "_sorted", "_sums")

    def __init__(self) -> None:
        self._counts: Counter[Demand] = Counter()
        self._sums: dict[str, float] = {}
        # Per resource, (amount, demand) sorted by amount.
        self._sorted: dict[str, list[tuple[float, Demand]]] = {}

    def add(self, demands: Iterable[Demand]) -> None:
        for demand, count in Counter(demands).items():
            for name, value in demand.items:
                self._sums[name] = self._sums.get(name, 0.0) + count * value
                if demand not in self._counts:
                    insort(self._sorted.setdefault(name, []), (value, demand), key=itemgetter(0))
            self._counts[demand] += count

    def coexisting(self, demand: Demand, size: Mapping[str, float]) -> dict[str, float]:
        """Returns, per resource of the demand, the sum over the demands that fit into the size together with it."""
        taken = {name: self._sums.get(name, 0.0) for name in demand.amounts}
        for other in dict.fromkeys(self._too_large(demand, size)):
            for name, value in other.items:
                if name in taken:
                    taken[name] -= self._counts[other] * value
        return taken

    def _too_large(self, demand: Demand, size: Mapping[str, float]) -> Iterator[Demand]:
        """Yields the demands that must have ended before `demand` fits, some of them more than once."""
        for name, mine in demand.items:
            others, most = self._sorted.get(name, []), size[name] + EPSILON
            first = bisect_left(others, True, key=lambda item: item[0] + mine > most)
            yield from (other for _, other in others[first:])


class Pool:
    """Size of a pool, and its held and reserved amounts, in one pass over the waiting runs.

    Free and spare amounts only decrease during a pass, so that a refused demand is refused again, for the same reason.
    A pool is exhausted when nothing is left of a resource that all demands need; then all are refused for the rest of
    the pass.
    """

    def __init__(
        self,
        name: str,
        size: Mapping[str, float],
        allowed_by: str | None = None,
        *,
        always: Collection[str] = (),
        within: "Pool | None" = None,
    ):
        """Creates an empty pool; demands have only resources in `size`, and every demand needs those in `always`.

        `allowed_by` is the text, for reasons, on who limits the pool; None for a cluster. A demand must also fit into
        the wider pool `within`, if given.
        """
        self.name, self.size, self._allowed_by, self._within = name, size, allowed_by, within
        self._always = [resource for resource in always if resource in size]
        self._free = dict(size)
        self._spare = dict.fromkeys(size, math.inf)
        self._reserved_for: dict[str, Reservation] = {}
        # Most pools reserve nothing, so held demands are only listed until the first reservation.
        self._ahead: HigherRankedDemands | None = None
        self._added: list[Demand] = []
        self._refused: dict[Demand, Blocker] = {}
        self._waiting = 0
        self._closed = self.exhausted = False

    @property
    def closed(self) -> bool:
        """True if no other run can start in this pool during this pass."""
        return self._closed or (self._within is not None and self._within.closed)

    @property
    def cause(self) -> WaitCause:
        """Cause of a wait if not enough is free in this pool."""
        return WaitCause.CAPACITY if self._allowed_by is None else WaitCause.LIMIT

    def blocker(self, demand: Demand) -> Blocker | None:
        """Returns why the next run of this pass cannot hold the demand now; None if it can."""
        if demand in self._refused:
            return self._refused[demand]
        free, spare = self._free, self._spare
        kept = None
        for name, value in demand.items:
            if value > free[name] + EPSILON:
                self._refused[demand] = found = Blocker(self, demand, None)
                return found
            if kept is None and value > spare[name] + EPSILON:
                kept = self._reserved_for[name]
        if kept is None:
            return None
        self._refused[demand] = found = Blocker(self, demand, kept)
        return found

    def hold(self, demand: Demand) -> None:
        free = self._free
        self._added.append(demand)
        for name, value in demand.items:
            free[name] = left = free[name] - value
            if left <= EPSILON:
                self._update_closed()
        if self._waiting:
            for name, value in demand.items:
                self._spare[name] -= value
            self._update_closed()

    def reserve(self, run_id: str, demand: Demand) -> None:
        spare = self._spare
        if self.closed or all(spare[name] <= EPSILON for name in demand.amounts):
            return  # later runs could not use any of these resources in any case
        self._waiting += 1
        if self._waiting > MAX_WAITING:
            self._close()
            return
        for (name, value), left in zip(demand.items, self._remaining_capacity(demand), strict=True):
            if left < spare[name]:
                spare[name] = left
                self._reserved_for[name] = Reservation(run_id, name, value)
        self._added.append(demand)
        self._update_closed()

    def short(self, demand: Demand) -> list[str]:
        """Returns the resources of which less is free than demanded."""
        return [name for name, value in demand.items if value > self._free[name] + EPSILON]

    def shortage(self, names: Collection[str]) -> str:
        """Returns a text on how much of these resources is free or, in a queue, held."""
        free = {name: max(0.0, self._free[name]) for name in names}
        if self._allowed_by is None:
            return f"{self.name} has {self._of_size(free)} free"
        held = {name: self.size[name] - self._free[name] for name in names}
        return f"{self.name} holds {self._of_size(held)} that {self._allowed_by}"

    def _of_size(self, values: Mapping[str, float]) -> str:
        return " and ".join(
            f"{number(name, value)} of {amount(name, self.size[name])}" for name, value in values.items()
        )

    def _remaining_capacity(self, demand: Demand) -> list[float]:
        """Returns the amount of each resource that this demand, and all ahead that fit next to it, leave."""
        if self._ahead is None:
            self._ahead = HigherRankedDemands()
        self._ahead.add(self._added)
        self._added.clear()
        size, taken = self.size, self._ahead.coexisting(demand, self.size)
        return [size[name] - value - taken[name] for name, value in demand.items]

    def _update_closed(self) -> None:
        free, spare = self._free, self._spare
        for name in self._always:
            if free[name] <= EPSILON or spare[name] <= EPSILON:
                self._closed = self.exhausted = True

    def _close(self) -> None:
        self._closed, self.exhausted = True, bool(self._always)
        for name in self.size:
            self._spare[name] = 0.0
            self._reserved_for[name] = Reservation(None, name, 0.0)


def _needs(demand: Demand, names: Collection[str]) -> str:
    asked = [amount(name, demand.amounts[name]) for name in names if name != RUNS]
    return f"needs {', '.join(asked)}; " if asked else ""


# A run's pools, narrowest first, with its demand on each.
PoolDemands = tuple[tuple[Pool, Demand], ...]


class SchedulingGroup:
    """Runs of one user, queue and cluster: their pools, and their demands on each.

    Attributes:
        blocked: True if no run of the group can start or reserve anything, since one of its pools is exhausted and
            narrower pools are closed. Reasons can then be computed later, since these pools do not change for the rest
            of the pass.
    """

    __slots__ = ("_demands", "_make", "_pools", "blocked")

    def __init__(self, pools: Sequence[Pool], make: Callable[[Waiting], Reason | PoolDemands]):
        """Takes the pools, narrowest first, and a function that returns the demands of a run."""
        self._pools, self._make = pools, make
        self._demands: dict[tuple[int, int, int], Reason | PoolDemands] = {}
        self.blocked = False
        self.update()

    def demands_or_reason(self, run: Waiting) -> Reason | PoolDemands:
        """Returns a run's demand on each of its pools, or why it could not start even if no other run existed."""
        # By identity, without comparing amounts, since runs of one recipe share one object, which lives as long as
        # the runs.
        key = (id(run.need), id(run.per_worker), run.num_workers)
        found = self._demands.get(key)
        if found is None:
            found = self._demands[key] = self._make(run)
        return found

    def update(self) -> None:
        for pool in self._pools:
            if pool.exhausted:
                self.blocked = True
                return
            if not pool.closed:
                return


class RunDemands:
    """The pools of one decision, and the demands of runs on them.

    The pools are clusters, queues with limits, and users' parts of queues that limit users. Demands are computed once
    per group and gang; there may be thousands of runs.
    """

    def __init__(
        self,
        capacity: Mapping[str, Capacity],
        queues: QueuesConfig,
        always: Collection[str] = (),
        unreachable: Mapping[str, str] = MappingProxyType({}),
    ):
        """Creates empty pools; every run needs some of each resource in `always`."""
        self._capacity, self._queues, self._unreachable = capacity, queues, unreachable
        self._counted = {*always} & {"CPU", "GPU"} | {RUNS}
        self._clusters = {address: Pool("the cluster", item.size, always=always) for address, item in capacity.items()}
        # With several clusters, a queue that is blocked on one of them may still start runs on another.
        self._only = next(iter(self._clusters.values())) if len(self._clusters) == 1 else None
        self._shared = {
            name: Pool(f"queue {name}", sizes, "it allows", always=self._counted, within=self._only)
            for name, part in queues.queues.items()
            if (sizes := _sizes(part))
        }
        self._own: dict[tuple[str, str], Pool] = {}
        self._own_sizes = {name: _sizes(part.per_user) for name, part in queues.queues.items()}
        self._groups: dict[tuple[str, str, str], SchedulingGroup] = {}
        self._known: dict[object, Demand] = {}

    @property
    def exhausted(self) -> bool:
        """True if no other run can start, or can change anything for later runs."""
        return self._only is not None and self._only.exhausted

    def group_of(self, run: Waiting) -> SchedulingGroup:
        key = (run.queue, run.user, run.address)
        group = self._groups.get(key)
        if group is None:
            pools = [pool for pool in self._pools_of(run) if pool is not None]
            group = self._groups[key] = SchedulingGroup(
                pools, lambda run: self._blocked_reason(run) or self.demands(run)
            )
        return group

    def _pools_of(self, run: Waiting | Holding) -> tuple[Pool | None, Pool | None, Pool | None]:
        return self._own_pool(run), self._shared.get(run.queue), self._clusters.get(run.address)

    def demands(self, run: Waiting | Holding) -> PoolDemands:
        """Returns a run's demand on each of its pools, narrowest first; queues and users may have no pool."""
        # Amounts that count in a queue and in a user's part of it.
        counted = {"GPU": run.need.get("GPU", 0.0), "CPU": run.need.get("CPU", 0.0), RUNS: 1.0}
        needs = zip(self._pools_of(run), (counted, counted, run.need), strict=True)
        return tuple((pool, self._demand(need, pool.size)) for pool, need in needs if pool is not None)

    def _own_pool(self, run: Waiting | Holding) -> Pool | None:
        """Returns the user's part of the queue; None if users have no limits."""
        if not self._own_sizes.get(run.queue):
            return None
        pool = self._own.get((run.queue, run.user))
        if pool is None:
            name, by = f"user {run.user} in queue {run.queue}", f"queue {run.queue} allows each user"
            pool = self._own[run.queue, run.user] = Pool(
                name,
                self._own_sizes[run.queue],
                by,
                always=self._counted,
                within=self._shared.get(run.queue, self._only),
            )
        return pool

    def _demand(self, need: Resources, size: Mapping[str, float]) -> Demand:
        items = tuple([item for item in sorted(need.items()) if item[1] > 0 and item[0] in size])
        demand = self._known.get(items)
        if demand is None:
            demand = self._known[items] = Demand(items)
        return demand

    def _blocked_reason(self, run: Waiting) -> Reason | None:
        capacity = self._capacity.get(run.address)
        part = self._queues.queues.get(run.queue)
        if part is not None and part.max_running == 0:
            return Reason(WaitCause.PAUSED, f"queue {run.queue} is paused (max_running: 0)")
        if part is not None and part.per_user.max_running == 0:
            text = f"queue {run.queue} is paused for every user (per_user.max_running: 0)"
            return Reason(WaitCause.PAUSED, text)
        if capacity is None:
            why = self._unreachable.get(run.address)
            text = f"waits for the cluster at {run.address}"
            # The error also begins with the address.
            text += ", which does not respond" if why is None else f": {why.removeprefix(run.address).lstrip(': ')}"
            return Reason(WaitCause.CLUSTER, text)
        gang = GangParts(run.need, run.per_worker, run.num_workers, run.min_workers)
        infeasible = never_fits(gang, run.queue, self._queues, capacity, run.address)
        return None if infeasible is None else Reason(WaitCause.INFEASIBLE, infeasible)


def _sizes(limits: Limits) -> dict[str, float]:
    """Returns the size of a pool with these limits; empty without limits."""
    running = {} if limits.max_running is None else {RUNS: float(limits.max_running)}
    return {**caps(limits), **running}
