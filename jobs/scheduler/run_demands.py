"""Demands of runs on each of their pools. Pure."""

from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType

from jobs.scheduler.decision import Holding, Reason, WaitCause, Waiting
from jobs.scheduler.feasibility import RUNS, Capacity, GangParts, Resources, caps, infeasible_reason
from jobs.scheduler.limits import Limits, QueuesConfig
from jobs.scheduler.pools import Demand, Pool

# A run's pools, the narrowest first, with its demand on each.
PoolDemands = tuple[tuple[Pool, Demand], ...]


class SchedulingGroup:
    """Runs of one user, queue and cluster: their pools, and their demands on each.

    Attributes:
        blocked: True if no run here can start or reserve anything: one of its pools admits none any more, and narrower
            pools reserve nothing. The reasons can then be computed later, since these pools do not change for the rest
            of the pass.
    """

    __slots__ = ("_demands", "_make", "_pools", "blocked")

    def __init__(self, pools: Sequence[Pool], make: Callable[[Waiting], Reason | PoolDemands]):
        """Takes the pools, the narrowest first, and a function that returns the demands of a kind of run."""
        self._pools, self._make = pools, make
        self._demands: dict[tuple[int, int, int], Reason | PoolDemands] = {}
        self.blocked = False
        self.update()

    def demands_or_reason(self, run: Waiting) -> Reason | PoolDemands:
        """Returns a run's demand on each of its pools, or why it could not start even if no other run existed."""
        # By identity, without comparing amounts: runs of one recipe share one object, which lives as long as the
        # runs.
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
        """True if no run can start any more, and none changes anything for later ones."""
        return self._only is not None and self._only.exhausted

    def group_of(self, run: Waiting) -> SchedulingGroup:
        key = (run.queue, run.user, run.address)
        group = self._groups.get(key)
        if group is None:
            pools = (self._own_pool(run), self._shared.get(run.queue), self._clusters.get(run.address))
            group = self._groups[key] = SchedulingGroup(
                [pool for pool in pools if pool is not None], self._demands_or_reason
            )
        return group

    def _demands_or_reason(self, run: Waiting) -> Reason | PoolDemands:
        return self._blocked_reason(run) or self.demands(run)

    def demands(self, run: Waiting | Holding) -> PoolDemands:
        """Returns a run's demand on each of its pools, the narrowest first; pools without limits are left out."""
        counted = _counted(run)
        pools = (self._own_pool(run), self._shared.get(run.queue), self._clusters.get(run.address))
        needs = zip(pools, (counted, counted, run.need), strict=True)
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
            # The error begins with the address, too.
            text += ", which does not respond" if why is None else f": {why.removeprefix(run.address).lstrip(': ')}"
            return Reason(WaitCause.CLUSTER, text)
        infeasible = infeasible_reason(
            GangParts(run.need, run.per_worker, run.num_workers, run.min_workers),
            run.queue,
            self._queues,
            capacity,
            run.address,
        )
        return None if infeasible is None else Reason(WaitCause.INFEASIBLE, infeasible)


def _counted(run: Waiting | Holding) -> Resources:
    """Returns the amounts that a run takes of a queue, and of a user's part of one."""
    return {"GPU": run.need.get("GPU", 0.0), "CPU": run.need.get("CPU", 0.0), RUNS: 1.0}


def _sizes(limits: Limits) -> dict[str, float]:
    """Returns the size of the pool of these limits; empty without limits."""
    running = {} if limits.max_running is None else {RUNS: float(limits.max_running)}
    return {**caps(limits), **running}
