"""Properties of the queue policy, over random sets of runs and over simulated time."""

import math
from random import Random

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from jobs.queue_policy import Capacity, Decision, Limits, QueuePart, QueuesConfig, Waiting, decide
from tests.jobs.simulator import (
    ADDRESS,
    Arrival,
    World,
    held,
    in_order,
    over,
    simulate,
    without_overtaking,
)

FOREVER = 1e12
thorough = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
SIZE = {"GPU": 8.0, "CPU": 24.0, "license": 3.0}
CLUSTER = Capacity(SIZE, SIZE)
NO_LIMITS = QueuesConfig(patience_s=FOREVER)


@st.composite
def needs(draw: st.DrawFn) -> dict[str, float]:
    """A gang that the empty cluster holds."""
    amounts = {name: draw(st.integers(0, int(most))) for name, most in SIZE.items()}
    amounts["CPU"] = max(1, amounts["CPU"])
    return {name: float(value) for name, value in amounts.items() if value}


@st.composite
def runs(draw: st.DrawFn, number: int, *, latest_s: int = 30, priorities: int = 3, queues: int = 2, users: int = 2) -> Waiting:
    """A run."""
    need = draw(needs())
    return Waiting(
        id=f"run-{number}",
        queue=f"q{draw(st.integers(0, queues - 1))}",
        user=f"u{draw(st.integers(0, users - 1))}",
        priority=draw(st.integers(0, priorities - 1)),
        queued_s=float(draw(st.integers(0, latest_s))),
        address=ADDRESS,
        need=need,
        per_worker=need,
        num_workers=1,
    )


@st.composite
def arrivals(draw: st.DrawFn, **options: int) -> list[Arrival]:
    """Runs of random lengths."""
    count = draw(st.integers(2, 12))
    return [Arrival(draw(runs(number, **options)), float(draw(st.integers(1, 20)))) for number in range(count)]


@st.composite
def limits(draw: st.DrawFn) -> Limits:
    """Limits, each of which may be absent."""
    return Limits(
        max_gpus=draw(st.none() | st.integers(0, 8)),
        max_cpus=draw(st.none() | st.integers(1, 24)),
        max_running=draw(st.none() | st.integers(1, 4)),
    )


@st.composite
def queue_configs(draw: st.DrawFn, patience_s: float | None = FOREVER) -> QueuesConfig:
    """Two queues with random limits."""
    parts = {}
    for name in ("q0", "q1"):
        own, per_user = draw(limits()), draw(limits())
        parts[name] = QueuePart(**own.model_dump(), per_user=per_user)
    patience = float(draw(st.integers(0, 40))) if patience_s is None else patience_s
    return QueuesConfig(patience_s=patience, queues=parts)


def open_queues(patience_s: float = FOREVER) -> QueuesConfig:
    """The same queues without limits."""
    return QueuesConfig(patience_s=patience_s, queues={"q0": QueuePart(), "q1": QueuePart()})


@thorough
@given(coming=arrivals(), queues=queue_configs(patience_s=None))
def test_no_pool_ever_holds_more_than_it_may(coming: list[Arrival], queues: QueuesConfig) -> None:
    def look(world: World, decision: Decision, now_s: float) -> None:
        rows = [*world.holding.values(), *(world.waiting[name] for name in decision.start)]
        assert not over(rows, CLUSTER, queues)

    simulate(coming, CLUSTER, queues, look=look)


@thorough
@given(coming=arrivals(), queues=queue_configs(patience_s=None))
def test_every_run_that_fits_alone_runs_once_in_the_end(coming: list[Arrival], queues: QueuesConfig) -> None:
    started = simulate(coming, CLUSTER, queues)
    able = {item.run.id for item in coming if not over([item.run], CLUSTER, queues)}
    assert set(started) == able


@thorough
@given(coming=arrivals(), queues=queue_configs(patience_s=None))
def test_everybody_is_told_one_thing(coming: list[Arrival], queues: QueuesConfig) -> None:
    def look(world: World, decision: Decision, now_s: float) -> None:
        assert len(decision.start) + len(decision.waits) == len(world.waiting)
        assert {*decision.start, *decision.waits} == set(world.waiting)
        ranked = in_order(world.waiting.values(), queues, now_s)
        for queue in ("q0", "q1"):
            stuck = [run.id for run in ranked if run.queue == queue and run.id in decision.waits]
            assert [decision.waits[name].position for name in stuck] == list(range(1, len(stuck) + 1))

    simulate(coming, CLUSTER, queues, look=look)


@thorough
@given(coming=arrivals(), queues=queue_configs(patience_s=None), seed=st.integers())
def test_the_order_of_the_rows_does_not_matter(coming: list[Arrival], queues: QueuesConfig, seed: int) -> None:
    random = Random(seed)

    def look(world: World, decision: Decision, now_s: float) -> None:
        waiting, holding = list(world.waiting.values()), list(world.holding.values())
        random.shuffle(waiting)
        random.shuffle(holding)
        assert decide(waiting, holding, {ADDRESS: CLUSTER}, queues, {}, now_s) == decision

    simulate(coming, CLUSTER, queues, look=look)


@thorough
@given(coming=arrivals(), queues=queue_configs(patience_s=None))
def test_starting_one_at_a_time_starts_the_same(coming: list[Arrival], queues: QueuesConfig) -> None:
    """A controller that is killed between two starts goes on as if it had not been."""

    def look(world: World, decision: Decision, now_s: float) -> None:
        waiting, holding, starts = dict(world.waiting), list(world.holding.values()), list(decision.start)
        while starts:
            again = decide(waiting.values(), holding, {ADDRESS: CLUSTER}, queues, {}, now_s)
            assert list(again.start) == starts
            holding.append(held(waiting.pop(starts.pop(0))))

    simulate(coming, CLUSTER, queues, look=look)


@thorough
@given(coming=arrivals(), queues=queue_configs(patience_s=None))
def test_who_fits_waits_only_behind_one_that_ranks_higher(coming: list[Arrival], queues: QueuesConfig) -> None:
    def look(world: World, decision: Decision, now_s: float) -> None:
        rows = [*world.holding.values(), *(world.waiting[name] for name in decision.start)]
        ranked = in_order(world.waiting.values(), queues, now_s)
        for place, run in enumerate(ranked):
            if run.id in decision.waits and not over([*rows, run], CLUSTER, queues):
                reason = decision.waits[run.id].reason
                above = {other.id for other in ranked[:place] if other.id in decision.waits}
                assert any(f"behind {name}," in reason for name in above), reason

    simulate(coming, CLUSTER, queues, look=look)


@thorough
@given(coming=arrivals(queues=1, users=1), data=st.data())
def test_equals_start_in_the_order_they_came(coming: list[Arrival], data: st.DataObject) -> None:
    queues = data.draw(queue_configs())
    alike = [Arrival(_alike(item.run, coming[0].run), item.length_s) for item in coming]
    started = simulate(alike, CLUSTER, queues)
    assume(started)
    order = [item.run.id for item in sorted(alike, key=lambda item: (item.run.queued_s, item.run.id))]
    times = [started[name] for name in order]
    assert times == sorted(times)


def _alike(run: Waiting, model: Waiting) -> Waiting:
    return Waiting(
        run.id, model.queue, model.user, model.priority, run.queued_s, ADDRESS, model.need, model.per_worker, 1
    )


@thorough
@given(coming=arrivals(priorities=1))
def test_overtaking_delays_nobody(coming: list[Arrival]) -> None:
    """Whatever comes when, and however long it runs: each starts no later than in strict order of arrival."""
    queues = open_queues()
    started = simulate(coming, CLUSTER, queues)
    strictly = simulate(coming, CLUSTER, queues, policy=without_overtaking)
    assert all(started[name] <= strictly[name] for name in strictly)


@thorough
@given(coming=arrivals(latest_s=0))
def test_overtaking_delays_nobody_of_any_priority(coming: list[Arrival]) -> None:
    queues = open_queues()
    started = simulate(coming, CLUSTER, queues)
    strictly = simulate(coming, CLUSTER, queues, policy=without_overtaking)
    assert all(started[name] <= strictly[name] for name in strictly)


@thorough
@given(coming=arrivals(), queues=queue_configs())
def test_from_when_it_stands_in_the_clusters_line_lower_ones_delay_nobody(
    coming: list[Arrival], queues: QueuesConfig
) -> None:
    """At every moment: freeze what comes, and compare with strict order from then on."""

    def look(world: World, decision: Decision, now_s: float) -> None:
        ranked = in_order(world.waiting.values(), queues, now_s)
        line = []
        for run in ranked:
            if run.id in decision.waits and "the cluster" not in decision.waits[run.id].reason:
                break
            line.append(run)
        if not any(run.id in decision.waits for run in line):
            return
        still = [item for item in coming if item.run.id in world.waiting]
        onward = simulate(still, CLUSTER, queues, world=world.copy(), from_s=now_s)
        alone = world.copy()
        alone.waiting = {run.id: run for run in line}
        strictly = simulate(still, CLUSTER, queues, policy=without_overtaking, world=alone, from_s=now_s)
        assert all(onward[run.id] <= strictly[run.id] for run in line)

    simulate(coming, CLUSTER, queues, look=look)


@thorough
@given(coming=arrivals(), queues=queue_configs())
def test_lower_ones_alone_never_keep_a_run_waiting(coming: list[Arrival], queues: QueuesConfig) -> None:
    """Whatever comes: what was started below a run while it stood in the cluster's line leaves it its place."""
    in_line_since: dict[str, float] = {}

    def look(world: World, decision: Decision, now_s: float) -> None:
        in_line = {name for name, wait in decision.waits.items() if "the cluster" in wait.reason}
        for name in set(in_line_since) - in_line:
            del in_line_since[name]
        ranked = [run.id for run in in_order([item.run for item in coming], queues, now_s)]
        for name in in_line & set(in_line_since):
            run = world.waiting[name]
            lower = [
                row
                for row in (*world.holding.values(), *(world.waiting[other] for other in decision.start))
                if ranked.index(row.id) > ranked.index(name)
                and world.started_s.get(row.id, math.inf) >= in_line_since[name]
            ]
            assert not [item for item in over([run, *lower], CLUSTER, open_queues()) if run.need.get(item[1])]
        for name in in_line:
            in_line_since.setdefault(name, now_s)

    simulate(coming, CLUSTER, queues, look=look)


@st.composite
def flood(draw: st.DrawFn) -> list[Arrival]:
    """Runs of high priority without end, more than the cluster can hold."""
    random = Random(draw(st.integers()))
    coming = []
    for number in range(300):
        gpus = float(random.randint(1, 8))
        need = {"GPU": gpus, "CPU": float(random.randint(1, 24))}
        run = Waiting(f"flood-{number}", "q0", f"u{number % 2}", 9, float(number), ADDRESS, need, need, 1)
        coming.append(Arrival(run, float(random.randint(1, 10))))
    return coming


@settings(max_examples=40, deadline=None)
@given(coming=flood(), victim=runs(0, latest_s=20, priorities=1), queues=queue_configs(patience_s=None))
def test_nobody_waits_for_ever(coming: list[Arrival], victim: Waiting, queues: QueuesConfig) -> None:
    assume(not over([victim], CLUSTER, queues))
    started = simulate([*coming, Arrival(victim, 5.0)], CLUSTER, queues)
    # Only what was queued before it can rank above it by then.
    earlier = [item for item in coming if item.run.queued_s <= victim.queued_s]
    longest_s = 10.0
    bound_s = queues.patience_s + 1 + 3 * longest_s * (1 + len(earlier))
    assert started[victim.id] <= victim.queued_s + bound_s


@settings(max_examples=40, deadline=None)
@given(coming=flood(), victim=runs(0, latest_s=0, priorities=1), patience_s=st.integers(0, 100))
def test_first_overdue_run_waits_for_what_runs_then_and_no_longer(
    coming: list[Arrival], victim: Waiting, patience_s: int
) -> None:
    queues = open_queues(float(patience_s))
    later = [Arrival(_later(item.run), item.length_s) for item in coming]
    ends: list[float] = []

    def look(world: World, decision: Decision, now_s: float) -> None:
        if now_s == victim.queued_s + patience_s + 1:
            ends.extend(world.ends_s.values())

    started = simulate([*later, Arrival(victim, 5.0)], CLUSTER, queues, look=look)
    overdue_s = victim.queued_s + patience_s + 1
    assert started[victim.id] <= max([overdue_s, *ends])


def _later(run: Waiting) -> Waiting:
    return Waiting(run.id, run.queue, run.user, 9, run.queued_s + 1, ADDRESS, run.need, run.per_worker, 1)
