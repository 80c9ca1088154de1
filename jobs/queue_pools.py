"""Pools: what may be held at once of something, and what is kept free there for runs that wait. Pure.

A cluster is a pool, a queue with limits is one, and a user's part of a queue is one. A run starts only when its whole
gang fits into each of its pools, and when nobody ahead of it who waits could be delayed by it.

**Keeping room.** How long runs will run is not known, so a later run j may start ahead of a waiting run h only if it
could run for ever and h would still start as early. When h's turn comes, some of those ahead of j are running: holders
of now that have not ended, and runs ranked above h that have started meanwhile. Which ones, nobody knows, but together
with h they fit into the pool. So j is harmless if whatever fits into the pool together with h still fits with j added:

    room(h) = size − need(h) − what all those take that are ahead of h and fit beside it
    j starts only if need(j) ≤ room(h), for each waiting h that ranks above it

What does not fit beside h, like the large run that h waits for, must have ended before h starts, and leaves its place:
that is the room for back-filling. Everything else may still be there. What starts is subtracted from the room, so that
many small runs together do no more harm than one.

This is conservative back-filling, in which every waiting run is protected and not only the first, with unknown lengths
in the place of users' estimates. Lifka, The ANL/IBM SP Scheduling System, JSSPP 1995; Mu'alem and Feitelson,
Utilization, Predictability, Workloads, and User Runtime Estimates in Scheduling the IBM SP2 with Backfilling, IEEE TPDS
12(6), 2001.
"""

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from jobs.queue_fit import EPSILON, amount, amounts, number

# One run at a time is a resource like others, where runs are counted.
RUNS = "runs"
# Nobody starts ahead of more runs than this that wait for one pool: what a decision costs stays bounded. Other
# schedulers know such a depth too (Slurm's bf_max_job_test).
MOST_WAITING = 200

Demand = tuple[tuple[str, float], ...]


class Kept(NamedTuple):
    """Room that is kept for a waiting run, or, with no id, for as many as are looked past."""

    run_id: str | None
    name: str
    value: float


class Obstacle:
    """Why a demand does not get into a pool: no room there, or room that is kept for another."""

    __slots__ = ("_demand", "_kept", "_pool", "_text")

    def __init__(self, pool: "Pool", demand: Demand, kept: Kept | None):
        """Takes the demand, and whom room is kept for; None where there is no room."""
        self._pool, self._demand, self._kept = pool, demand, kept
        self._text: str | None = None

    def text(self) -> str:
        """One line: the pool, what is needed, and what is free. Asked at the end of a pass, when that is settled."""
        if self._text is None:
            self._text = self._say()
        return self._text

    def _say(self) -> str:
        needs, pool, kept = _needs(self._demand), self._pool, self._kept
        if kept is None:
            return needs + pool.shortage(self._demand)
        if kept.run_id is None:
            return f"{needs}behind {MOST_WAITING} runs that wait for {pool.name}"
        return f"{needs}behind {kept.run_id}, for which {amount(kept.name, kept.value)} of {pool.name} are kept free"


class Pool:
    """What may be held at once, what is held, and what is kept free, in one pass over the waiting runs.

    Both what is free and what is spare only shrink during a pass, so that who was refused once need not be asked again.
    """

    __slots__ = ("_ahead", "_allowed_by", "_free", "_kept_for", "_refusals", "_spare", "_waiting", "name", "size")

    def __init__(self, name: str, size: Mapping[str, float], allowed_by: str | None = None):
        """An empty pool.

        Args:
            name: As messages name it, e.g. `queue research`.
            size: The most of each resource that may be held. Demands name no others.
            allowed_by: Who says so, for the limits of a queue or a user; None for a cluster.
        """
        self.name, self.size, self._allowed_by = name, dict(size), allowed_by
        self._free = dict(self.size)
        self._spare = dict.fromkeys(self.size, math.inf)
        self._kept_for: dict[str, Kept] = {}
        self._ahead: dict[Demand, int] = {}
        self._refusals: dict[tuple[Demand, Kept | None], Obstacle] = {}
        self._waiting = 0

    def obstacle(self, demand: Demand) -> Obstacle | None:
        """Why a run that ranks below all that were shown before cannot have this much now; None where it can."""
        free, spare = self._free, self._spare
        for name, value in demand:
            if value > free[name] + EPSILON:
                return self._refusal(demand, None)
        for name, value in demand:
            if value > spare[name] + EPSILON:
                return self._refusal(demand, self._kept_for[name])
        return None

    def hold(self, demand: Demand) -> None:
        """Takes what a run holds, or starts to hold now."""
        self._ahead[demand] = self._ahead.get(demand, 0) + 1
        for name, value in demand:
            self._free[name] -= value
            self._spare[name] -= value

    def keep_for(self, run_id: str, demand: Demand) -> None:
        """Keeps room for a run that waits, against all that are shown later."""
        spare = self._spare
        for name, _ in demand:
            if spare[name] > EPSILON:
                break
        else:
            return  # nobody gets any of it anyway
        self._waiting += 1
        if self._waiting > MOST_WAITING:
            self._close()
            return
        for name, room in self._room(demand).items():
            if room < spare[name]:
                spare[name] = room
                self._kept_for[name] = Kept(run_id, name, dict(demand)[name])
        self._ahead[demand] = self._ahead.get(demand, 0) + 1

    def shortage(self, demand: Demand) -> str:
        """What is held or free of what is short."""
        short = [(name, self._free[name]) for name, value in demand if value > self._free[name] + EPSILON]
        if self._allowed_by is None:
            return f"{self.name} has {self._of_size(short)} free"
        held = [(name, self.size[name] - free) for name, free in short]
        return f"{self.name} holds {self._of_size(held)} that {self._allowed_by}"

    def _of_size(self, values: list[tuple[str, float]]) -> str:
        return " and ".join(
            f"{number(name, max(0.0, value))} of {amount(name, self.size[name])}" for name, value in values
        )

    def _room(self, demand: Demand) -> dict[str, float]:
        """What of each resource is left beside this demand and all those ahead that fit beside it."""
        size = self.size
        beside = {name: size[name] - value for name, value in demand}
        room = dict(beside)
        for other, count in self._ahead.items():
            for name, value in other:
                if value > beside.get(name, math.inf) + EPSILON:
                    break  # it must have ended before
            else:
                for name, value in other:
                    if name in room:
                        room[name] -= count * value
        return room

    def _refusal(self, demand: Demand, kept: Kept | None) -> Obstacle:
        """The same object for the same refusal, so that thousands of runs share one text."""
        found = self._refusals.get((demand, kept))
        if found is None:
            found = self._refusals[demand, kept] = Obstacle(self, demand, kept)
        return found

    def _close(self) -> None:
        for name in self.size:
            self._spare[name] = 0.0
            self._kept_for[name] = Kept(None, name, 0.0)


@lru_cache(maxsize=4096)
def _needs(demand: Demand) -> str:
    asked = {name: value for name, value in demand if name != RUNS}
    return f"needs {amounts(asked)}; " if asked else ""


def demand_of(need: Mapping[str, float], size: Mapping[str, float]) -> Demand:
    """What of a need a pool of this size counts."""
    return tuple((name, value) for name, value in sorted(need.items()) if value > 0 and name in size)
