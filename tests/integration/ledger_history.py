"""Checks that a history of ledger events can have happened."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from jobs.model import Attempt, Event, Run, RunState
from jobs.scheduler.decision import Holding, Waiting
from jobs.scheduler.feasibility import Capacity
from jobs.scheduler.limits import QueuesConfig
from jobs.scheduler.policy import decide


def check_each_run(runs: Sequence[Run], events: Sequence[Event], attempts: Mapping[str, Sequence[Attempt]]) -> None:
    """Every run's own events follow from each other, and agree with its attempts."""
    by_run = defaultdict(list)
    for event in events:
        by_run[event.run_id].append(event)
    for run in runs:
        history = by_run[run.id]
        assert [history[0].cause, history[0].before, history[0].state] == ["submitted", None, RunState.QUEUED], run.id
        for before, after in pairwise(history):
            assert after.before == before.state, f"{run.id}: {before} then {after}"
            assert after.at_s >= before.at_s
            assert not before.state.ended or after.cause in ("resumed", "stop_requested"), f"{run.id}: {after}"
        admitted = [event.attempt for event in history if event.cause == "admitted"]
        ended = [event.attempt for event in history if event.cause == "ended"]
        taken = [event.attempt for event in history if event.cause == "ray_submitted"]
        assert admitted == list(range(1, run.attempt + 1)), f"{run.id}: attempts opened {admitted}"
        assert ended == admitted, f"{run.id}: opened {admitted}, ended {ended}"
        assert taken == admitted, f"{run.id}: opened {admitted}, given to Ray {taken}"
        assert [item.number for item in attempts[run.id]] == admitted
        assert history[-1].state == run.state


def check_order(
    runs: Sequence[Run], events: Sequence[Event], capacity: Mapping[str, Capacity], queues: QueuesConfig
) -> None:
    """Each admission is one that the policy makes of what was waiting and running just then."""
    known = {run.id: run for run in runs}
    waiting: dict[str, Waiting] = {}
    holding: dict[str, Holding] = {}
    for event in events:
        run = known[event.run_id]
        if event.cause == "admitted":
            starts = decide(list(waiting.values()), list(holding.values()), capacity, queues, {}, event.at_s).start
            assert run.id in starts, f"{run.id} was started, the policy starts {starts}"
            del waiting[run.id]
            holding[run.id] = holding_of(run)
        elif event.state.waiting and event.cause != "stop_requested":
            holding.pop(run.id, None)
            waiting[run.id] = waiting_of(run)
        elif event.state.ended:
            holding.pop(run.id, None)
            waiting.pop(run.id, None)
    assert not waiting and not holding


def check_never_more(intervals: Sequence[tuple[float, float, Mapping[str, float]]], limit: Mapping[str, float]) -> None:
    """What really ran at the same time never held more than the limit."""
    for start, _, _ in intervals:
        for name, most in limit.items():
            held = sum(need.get(name, 0.0) for begin, end, need in intervals if begin <= start < end)
            assert held <= most, f"{held} {name} were held at once, of {most}"


def waiting_of(run: Run) -> Waiting:
    """The policy's row of a waiting run."""
    return Waiting(
        **_row(run), per_worker=run.gang.resources_per_worker, num_workers=run.gang.num_workers, **_when(run)
    )


def holding_of(run: Run) -> Holding:
    """The policy's row of a run that holds its gang."""
    return Holding(**_row(run))


def _row(run: Run) -> dict[str, Any]:
    return {
        "id": run.id,
        "queue": run.queue,
        "user": run.user,
        "priority": run.priority,
        "queued_s": run.queued_s,
        "address": run.address,
        "need": run.gang.total,
    }


def _when(run: Run) -> dict[str, Any]:
    return {"depends_on": tuple(run.depends_on), "not_before_s": None}
