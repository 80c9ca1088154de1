"""Decides which runs start now: a pure function of ledger rows, the clusters' capacity and the queues' limits.

The rules:

1. **Rank.** The run with the largest priority goes first; of equal priorities, the run that has waited longest; then
   the first by name, so that the same rows always give the same decision. Runs that have waited longer than the
   starvation timeout (`patience_s`) go before all others, whatever the priorities; of these, the run that has waited
   longest goes first. The rank is the same for all queues, and also decides between queues that share a cluster.
2. **All or nothing.** A run starts when its gang fits into each of its pools: its user's part of the queue, its
   queue, and its cluster with the resources to which that can still grow.
3. **Back-filling delays no waiting run.** A run with a lower rank starts ahead of a waiting run only if it cannot delay
   that run, however long runs take (`pools` has the rule). A run waits in line for a pool if it fits into the narrower
   pools. So a run that its user's limit blocks reserves nothing of the queue or the cluster, and others may use
   resources that it could not have used.
4. **Runs that cannot start for another reason reserve nothing**: those that wait for another run, for the time of a
   retry, for a cluster that does not respond, in a paused queue, or for more resources than the cluster can have now.

Consequences, which are tested:

- A run that waits in line for its cluster starts no later than without any back-filling from then on, as long as no run
  with a higher rank joins that line later. Without limits of queues and users, and with equal priorities, this is true
  for every run: back-filling delays none.
- Runs with a lower rank that were started while a run waited in line never delay it on their own. It waits for runs
  with a higher rank, and for those that were running when it joined the line.
- No run starves. After `patience_s`, only runs that were queued earlier rank higher, and their number is finite. The
  first of them waits for the runs that run when it joins the line of its user, of its queue and of its cluster: at most
  three times the length of the longest run, or once without limits. Each overdue run that was queued before another
  adds the same time again, and its own length.
"""

import math
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from operator import attrgetter, itemgetter

from jobs.model import MAX_BACKOFF_S, RunState
from jobs.scheduler.decision import Decision, Holding, Reason, WaitCause, Waiting, WaitReasons
from jobs.scheduler.feasibility import EPSILON, Capacity
from jobs.scheduler.limits import QueuesConfig
from jobs.scheduler.pools import Blocker, RunDemands, SchedulingGroup

# Why a run waits: a reason, the blocker in a pool, or the run itself, whose reason is computed on access.
_Found = Reason | Blocker | Waiting


def decide(
    waiting: Collection[Waiting],
    holding: Iterable[Holding],
    capacity: Mapping[str, Capacity],
    queues: QueuesConfig,
    dependencies: Mapping[str, RunState],
    now_s: float,
    unreachable: Mapping[str, str] | None = None,
) -> Decision:
    """Decides for each waiting run whether it starts now, waits, or can never start.

    `capacity` has the clusters that respond, by address; `unreachable` has the reasons of the others. `dependencies`
    has the states of the runs that others depend on.
    """
    pools = RunDemands(capacity, queues, _needed_by_all(waiting), unreachable or {})
    for held in holding:
        for pool, demand in pools.demands(held):
            pool.hold(demand)
    start: list[str] = []
    refuse: dict[str, str] = {}
    blocked: list[Waiting] = []
    reasons: list[_Found] = []
    for run in ranked(waiting, queues.patience_s, now_s):
        failed = _failed_dependency(run, dependencies) if run.depends_on else None
        if failed is not None:
            refuse[run.id] = failed
            continue
        reason: _Found | None = None
        if run.depends_on or run.not_before_s is not None:
            reason = _wait_reason(run, dependencies, now_s)
        if reason is None:
            reason = run if pools.exhausted or (group := pools.group_of(run)).blocked else _start_or_reserve(run, group)
        if reason is None:
            start.append(run.id)
        else:
            blocked.append(run)
            reasons.append(reason)
    return Decision(tuple(start), WaitReasons(blocked, _wording(reasons, pools)), refuse)


def ranked(waiting: Iterable[Waiting], patience_s: float, now_s: float) -> list[Waiting]:
    """Returns the waiting runs by rank: overdue runs by time and name, then the others by priority, time and name."""
    by_time = sorted(waiting, key=attrgetter("queued_s"))
    if len({run.queued_s for run in by_time}) < len(by_time):
        by_time.sort(key=attrgetter("queued_s", "id"))
    overdue = bisect_left(by_time, now_s - patience_s, key=attrgetter("queued_s"))
    # Sorting is stable: equals keep their order.
    return by_time[:overdue] + sorted(by_time[overdue:], key=attrgetter("priority"), reverse=True)


def _needed_by_all(waiting: Iterable[Waiting]) -> set[str]:
    """Returns the resources of which every run needs a significant amount (above rounding errors)."""
    needs = list({id(run.need): run.need for run in waiting}.values())  # thousands share one
    shared = set(needs[0]).intersection(*needs) if needs else set()
    if not shared or min(min(need.values()) for need in needs) > 2 * EPSILON:
        return shared
    return {name for name in shared if min(map(itemgetter(name), needs)) > 2 * EPSILON}


def _wait_reason(run: Waiting, dependencies: Mapping[str, RunState], now_s: float) -> Reason | None:
    for name in run.depends_on:
        state = dependencies.get(name)
        if state is None:
            text = f"waits for run {name}, which this ledger does not know: stop this run, or submit {name}"
            return Reason(WaitCause.DEPENDENCY, text)
        if state != RunState.SUCCEEDED:
            return Reason(WaitCause.DEPENDENCY, f"waits for run {name} ({state})")
    # A retry later than the longest pause from now was planned before the clock was set back, so it is due.
    if run.not_before_s is not None and 0 < run.not_before_s - now_s <= MAX_BACKOFF_S:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(math.ceil(run.not_before_s)))
        return Reason(WaitCause.RETRY, f"retries at {at} UTC")
    return None


def _failed_dependency(run: Waiting, dependencies: Mapping[str, RunState]) -> str | None:
    for name in run.depends_on:
        state = dependencies.get(name)
        if state in (RunState.FAILED, RunState.STOPPED):
            return f"depends on run {name}, which is {state}: resume {name} first, then this run"
    return None


def _start_or_reserve(run: Waiting, group: SchedulingGroup) -> Reason | Blocker | None:
    """Starts the run, or reserves resources for it in its pools; returns what blocks it, or None if it starts."""
    demands = group.demands_or_reason(run)
    if isinstance(demands, Reason):
        return demands
    for level, (pool, demand) in enumerate(demands, start=1):
        blocker = pool.blocker(demand)
        if blocker is not None:
            for narrow, own_demand in demands[:level]:
                narrow.reserve(run.id, own_demand)
            group.update()
            return blocker
    for pool, demand in demands:
        pool.hold(demand)
    return None


def _wording(reasons: Sequence[_Found], pools: RunDemands) -> Callable[[int], Reason]:
    """Returns a function that formats the reason at an index; called after all starts, for the correct free amounts."""
    worded: dict[Blocker, Reason] = {}  # thousands share a text

    def reason_at(place: int) -> Reason:
        reason = reasons[place]
        if isinstance(reason, Waiting):
            # The reason of a blocked group, see `SchedulingGroup.blocked`.
            demands = pools.group_of(reason).demands_or_reason(reason)
            if isinstance(demands, Reason):
                return demands
            reason = next(found for pool, demand in demands if (found := pool.blocker(demand)) is not None)
        if isinstance(reason, Reason):
            return reason
        if reason not in worded:
            worded[reason] = reason.reason()
        return worded[reason]

    return reason_at
