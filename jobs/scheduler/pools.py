"""Pools: what may be held at once of something, and what is reserved there for runs that wait. Pure.

A cluster is a pool, a queue with limits is one, and a user's part of a queue is one. A run starts only when its whole
gang fits into each of its pools, and if it cannot delay a waiting run ahead of it.

**Reserving.** How long runs will run is not known, so a later run j may start ahead of a waiting run h only if it
could run for ever and h would still start as early. When h's turn comes, some of those ahead of j are running: holders
of now that have not ended, and runs ranked above h that have started meanwhile. Which ones is not known, but together
with h they fit into the pool. So j is harmless if whatever fits into the pool together with h still fits with j added:

    room(h) = size − need(h) − what all those take that are ahead of h and fit next to it
    j starts only if need(j) ≤ room(h), for each waiting h that ranks above it

What does not fit next to h, like the large run that h waits for, must have ended before h starts, and leaves its place:
that is the room for back-filling. Everything else may still be there. What starts is subtracted from the room, so that
many small runs together do no more harm than one.

This is conservative back-filling, in which every waiting run is protected and not only the first, with unknown lengths
in the place of users' estimates. Lifka, The ANL/IBM SP Scheduling System, JSSPP 1995; Mu'alem and Feitelson,
Utilization, Predictability, Workloads, and User Runtime Estimates in Scheduling the IBM SP2 with Backfilling, IEEE TPDS
12(6), 2001.
"""

import math
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from operator import itemgetter
from typing import NamedTuple

from jobs.scheduler.decision import Reason, WaitCause
from jobs.scheduler.feasibility import EPSILON, RUNS, amount, number

# No run starts ahead of more runs than this that wait for one pool, so that the cost of a decision is bounded, as with
# Slurm's bf_max_job_test.
MAX_WAITING = 200


class Demand:
    """What a run takes of a pool, none of it zero. Equal ones are one object, so that thousands compare quickly."""

    __slots__ = ("amounts", "items")

    def __init__(self, items: tuple[tuple[str, float], ...]):
        self.items, self.amounts = items, dict(items)


class Reservation(NamedTuple):
    """Resources that are reserved for a waiting run; without an id, for the runs beyond MAX_WAITING."""

    run_id: str | None
    name: str
    value: float


class Blocker(NamedTuple):
    """Why a demand does not get into a pool: a reservation prevents it, or (None) there is not enough free at all."""

    pool: "Pool"
    demand: Demand
    reservation: Reservation | None

    def reason(self) -> Reason:
        """What is needed, the pool, and what is free there at the end of the pass."""
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
    """What is ahead of a run in a pool: what is held, and what waiting runs demand.

    The sums are kept, and the amounts are sorted: what does not fit next to a demand is found without a look at all
    that does, of which there may be thousands, no two alike.
    """

    __slots__ = ("_counts", "_sorted", "_sums")

    def __init__(self) -> None:
        self._counts: Counter[Demand] = Counter()
        self._sums: dict[str, float] = {}
        # Of each resource, (amount, demand) in the order of amounts.
        self._sorted: dict[str, list[tuple[float, Demand]]] = {}

    def add(self, demands: Iterable[Demand]) -> None:
        for demand, count in Counter(demands).items():
            for name, value in demand.items:
                self._sums[name] = self._sums.get(name, 0.0) + count * value
                if demand not in self._counts:
                    insort(self._sorted.setdefault(name, []), (value, demand), key=itemgetter(0))
            self._counts[demand] += count

    def coexisting(self, demand: Demand, size: Mapping[str, float]) -> dict[str, float]:
        """How much is taken, of each resource of the demand, by those that fit into the size together with it."""
        taken = {name: self._sums.get(name, 0.0) for name in demand.amounts}
        for other in dict.fromkeys(self._too_large(demand, size)):
            for name, value in other.items:
                if name in taken:
                    taken[name] -= self._counts[other] * value
        return taken

    def _too_large(self, demand: Demand, size: Mapping[str, float]) -> Iterator[Demand]:
        """Those that must have ended before the demand is met, some of them more than once."""
        for name, mine in demand.items:
            others, most = self._sorted.get(name, []), size[name] + EPSILON
            first = bisect_left(others, True, key=lambda item: item[0] + mine > most)
            yield from (other for _, other in others[first:])


class Pool:
    """What may be held at once, what is held, and what is reserved, in one pass over the waiting runs.

    Both what is free and what is spare only shrink during a pass, so that what was refused once is refused again, for
    the same reason. It is exhausted when nothing is left that all demands take: all are refused for the rest of the
    pass.
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
        """An empty pool, whose demands name no other resources than its `size`, and each some of those `always`.

        The limits of a queue or a user say by whom they are allowed; whoever gets into a pool within a wider one has to
        get into that, too.
        """
        self.name, self.size, self._allowed_by, self._within = name, size, allowed_by, within
        self._always = [resource for resource in always if resource in size]
        self._free = dict(size)
        self._spare = dict.fromkeys(size, math.inf)
        self._reserved_for: dict[str, Reservation] = {}
        # Most pools reserve nothing: there, what is held is only listed.
        self._ahead: HigherRankedDemands | None = None
        self._added: list[Demand] = []
        self._refused: dict[Demand, Blocker] = {}
        self._waiting = 0
        self._closed = self.exhausted = False

    @property
    def closed(self) -> bool:
        """Whether no other run can start in this pool during this pass."""
        return self._closed or (self._within is not None and self._within.closed)

    @property
    def cause(self) -> WaitCause:
        """What runs wait for here where there is not enough free."""
        return WaitCause.CAPACITY if self._allowed_by is None else WaitCause.LIMIT

    def blocker(self, demand: Demand) -> Blocker | None:
        """Why a run that ranks below all earlier ones of this pass cannot have this much now; None if it can."""
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
            return  # nothing of it is available to later runs in any case
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
        """Of which resources less is free than the demand."""
        return [name for name, value in demand.items if value > self._free[name] + EPSILON]

    def shortage(self, names: Collection[str]) -> str:
        """How much of these is free, or held."""
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
        """What of each resource is left by this demand and all those ahead that fit next to it."""
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
