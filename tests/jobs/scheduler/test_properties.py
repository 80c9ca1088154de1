"""Properties of the scheduling policy, over random sets of runs and over simulated time."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import combinations
from random import Random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from jobs.scheduler.decision import Decision, Holding, Waiting
from jobs.scheduler.feasibility import Capacity
from jobs.scheduler.limits import Limits, QueuePart, QueuesConfig
from jobs.scheduler.policy import decide
from jobs.scheduler.pools import Demand, HigherRankedDemands, RunDemands, SchedulingGroup
from tests.jobs.scheduler.simulator import ADDRESS, Arrival, World, held, in_order, over, simulate, without_overtaking
from tests.settings import examples

FOREVER = 1e12
SIZE = {"GPU": 8.0, "CPU": 24.0, "license": 3.0}
CLUSTER = Capacity(SIZE, SIZE)
PLENTY = Capacity(dict.fromkeys(SIZE, math.inf), dict.fromkeys(SIZE, math.inf))
LONGEST_S = 20

quick = settings(max_examples=examples(100), deadline=None)


@st.composite
def needs(draw: st.DrawFn) -> dict[str, float]:
    """A gang that the empty cluster holds: of GPUs only, where runs most often stand in each other's way, or of all."""
    gpus = draw(st.integers(0, 8))
    if draw(st.booleans()):
        return {"GPU": float(max(1, gpus))}
    rest = {"CPU": draw(st.integers(1, 24)), "license": draw(st.integers(0, 3))}
    return {name: float(value) for name, value in {"GPU": gpus, **rest}.items() if value}


@st.composite
def runs(draw: st.DrawFn, number: int, *, latest_s: int = 30, priorities: int = 3) -> Waiting:
    """A run of one of two users, in one of two queues."""
    need = draw(needs())
    return Waiting(
        id=f"run-{number:02}",
        queue=f"q{draw(st.integers(0, 1))}",
        user=f"u{draw(st.integers(0, 1))}",
        priority=draw(st.integers(0, priorities - 1)),
        queued_s=float(draw(st.integers(0, latest_s))),
        address=ADDRESS,
        need=need,
        per_worker=need,
        num_workers=1,
    )


@st.composite
def arrivals(draw: st.DrawFn, /, **options: int) -> list[Arrival]:
    """Runs of random lengths."""
    count = draw(st.integers(2, 12))
    return [Arrival(draw(runs(number, **options)), float(draw(st.integers(1, LONGEST_S)))) for number in range(count)]


limits = st.builds(
    Limits,
    max_gpus=st.none() | st.integers(0, 8),
    max_cpus=st.none() | st.integers(1, 24),
    max_running=st.none() | st.integers(1, 4),
)


@st.composite
def parts(draw: st.DrawFn) -> QueuePart:
    """Limits of a queue and of its users."""
    return QueuePart(**draw(limits).model_dump(), per_user=draw(limits))


def queue_configs(patience_s: st.SearchStrategy[float]) -> st.SearchStrategy[QueuesConfig]:
    """Two queues."""
    return st.builds(QueuesConfig, patience_s=patience_s, queues=st.fixed_dictionaries({"q0": parts(), "q1": parts()}))


any_queues = queue_configs(st.integers(0, 40).map(float))
patient_queues = queue_configs(st.just(FOREVER))


def open_queues(patience_s: float = FOREVER) -> QueuesConfig:
    """Two queues without limits."""
    return QueuesConfig(patience_s=patience_s, queues={"q0": QueuePart(), "q1": QueuePart()})


def rows_after(world: World, decision: Decision) -> list[Waiting | Holding]:
    """What holds resources once the decision is carried out."""
    return [*world.holding.values(), *(world.waiting[name] for name in decision.start)]


class TestPools:
    """Nothing is exceeded, nobody is lost."""

    @quick
    @given(coming=arrivals(), queues=any_queues)
    def test_no_pool_ever_holds_more_than_it_may(self, coming: list[Arrival], queues: QueuesConfig) -> None:
        def observe(world: World, decision: Decision, now_s: float) -> None:
            assert not over(rows_after(world, decision), CLUSTER, queues)

        simulate(coming, CLUSTER, queues, observe=observe)

    @quick
    @given(coming=arrivals(), queues=any_queues)
    def test_every_run_that_fits_alone_runs_in_the_end(self, coming: list[Arrival], queues: QueuesConfig) -> None:
        started = simulate(coming, CLUSTER, queues)
        assert set(started) == {item.run.id for item in coming if not over([item.run], CLUSTER, queues)}

    @quick
    @given(coming=arrivals(), queues=any_queues)
    def test_everybody_is_told_one_thing(self, coming: list[Arrival], queues: QueuesConfig) -> None:
        def observe(world: World, decision: Decision, now_s: float) -> None:
            assert sorted([*decision.start, *decision.waits]) == sorted(world.waiting)
            ranked = in_order(world.waiting.values(), queues, now_s)
            for queue in ("q0", "q1"):
                blocked = [run.id for run in ranked if run.queue == queue and run.id in decision.waits]
                assert [decision.waits[name].position for name in blocked] == list(range(1, len(blocked) + 1))

        simulate(coming, CLUSTER, queues, observe=observe)


class TestSameRowsSameDecision:
    """A decision depends on nothing but what it is given."""

    @quick
    @given(coming=arrivals(), queues=any_queues, seed=st.integers())
    def test_the_order_of_the_rows_does_not_matter(
        self, coming: list[Arrival], queues: QueuesConfig, seed: int
    ) -> None:
        random = Random(seed)

        def observe(world: World, decision: Decision, now_s: float) -> None:
            waiting, holding = list(world.waiting.values()), list(world.holding.values())
            random.shuffle(waiting)
            random.shuffle(holding)
            assert decide(waiting, holding, {ADDRESS: CLUSTER}, queues, {}, now_s) == decision

        simulate(coming, CLUSTER, queues, observe=observe)

    @quick
    @given(coming=arrivals(), queues=any_queues)
    def test_starting_one_at_a_time_starts_the_same(self, coming: list[Arrival], queues: QueuesConfig) -> None:
        """A controller that is killed between two starts is continued as if it had not been."""

        def observe(world: World, decision: Decision, now_s: float) -> None:
            waiting, holding, starts = dict(world.waiting), list(world.holding.values()), list(decision.start)
            while starts:
                again = decide(waiting.values(), holding, {ADDRESS: CLUSTER}, queues, {}, now_s)
                assert list(again.start) == starts
                holding.append(held(waiting.pop(starts.pop(0))))

        simulate(coming, CLUSTER, queues, observe=observe)


class TestShortCuts:
    """What is worked out at once, or later, is as if it had been done one by one."""

    @quick
    @given(coming=arrivals(), queues=any_queues, clusters=st.integers(1, 3))
    def test_who_is_known_to_wait_is_told_what_a_try_would_have_told(
        self, coming: list[Arrival], queues: QueuesConfig, clusters: int
    ) -> None:
        addresses = [f"http://head{number}" for number in range(clusters)]
        waiting = [replace(item.run, address=addresses[number % clusters]) for number, item in enumerate(coming)]
        capacity = dict.fromkeys(addresses, CLUSTER)
        decision = decide(waiting, [], capacity, queues, {}, 40.0)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SchedulingGroup, "update", lambda place: None)
            patch.setattr(RunDemands, "exhausted", False)
            tried = decide(waiting, [], capacity, queues, {}, 40.0)
        assert (decision.start, dict(decision.waits), decision.refuse) == (
            tried.start,
            dict(tried.waits),
            tried.refuse,
        )

    @quick
    @given(demands=st.lists(needs(), min_size=1), more=st.lists(needs()), mine=needs())
    def test_what_fits_beside_a_demand_is_the_sum_of_those_that_do(
        self, demands: list[dict[str, float]], more: list[dict[str, float]], mine: dict[str, float]
    ) -> None:
        known: dict[tuple[tuple[str, float], ...], Demand] = {}
        ahead = HigherRankedDemands()
        for part in (demands, more):
            keys = [tuple(sorted(need.items())) for need in part]
            ahead.add(known.setdefault(items, Demand(items)) for items in keys)
            there = [*demands, *(more if part is more else [])]
            coexisting = [
                need for need in there if all(need.get(name, 0.0) + mine[name] <= SIZE[name] for name in mine)
            ]
            taken = {name: sum(need.get(name, 0.0) for need in coexisting) for name in mine}
            assert ahead.coexisting(Demand(tuple(mine.items())), SIZE) == taken


class TestOrder:
    """Rank decides."""

    @quick
    @given(coming=arrivals(), queues=any_queues)
    def test_who_fits_waits_only_behind_one_that_ranks_higher(
        self, coming: list[Arrival], queues: QueuesConfig
    ) -> None:
        def observe(world: World, decision: Decision, now_s: float) -> None:
            above: list[str] = []
            for run in in_order(world.waiting.values(), queues, now_s):
                if run.id not in decision.waits:
                    continue
                if not over([*rows_after(world, decision), run], CLUSTER, queues):
                    reason = decision.waits[run.id].reason
                    assert any(f"behind {name}, for which" in reason for name in above), reason
                above.append(run.id)

        simulate(coming, CLUSTER, queues, observe=observe)

    @quick
    @given(coming=arrivals(), queues=any_queues, need=needs())
    def test_equals_start_in_the_order_they_came(
        self, coming: list[Arrival], queues: QueuesConfig, need: dict[str, float]
    ) -> None:
        alike = [
            Arrival(Waiting(item.run.id, "q0", "u0", 1, item.run.queued_s, ADDRESS, need, need, 1), item.length_s)
            for item in coming
        ]
        started = simulate(alike, CLUSTER, queues)
        assume(started)
        times = [started[item.run.id] for item in sorted(alike, key=lambda item: (item.run.queued_s, item.run.id))]
        assert times == sorted(times)


class TestOvertaking:
    """Back-filling delays nobody."""

    @settings(quick, max_examples=examples(300))
    @given(coming=arrivals(priorities=1))
    def test_nobody_starts_later_than_in_strict_order_of_coming(self, coming: list[Arrival]) -> None:
        _check_nobody_is_later(coming)

    @settings(quick, max_examples=examples(300))
    @given(coming=arrivals(latest_s=0))
    def test_nobody_starts_later_than_in_strict_order_of_priority(self, coming: list[Arrival]) -> None:
        _check_nobody_is_later(coming)

    @settings(quick, max_examples=examples(300))
    @given(coming=arrivals(), queues=patient_queues)
    def test_from_when_it_stands_in_the_clusters_line_nobody_is_later(
        self, coming: list[Arrival], queues: QueuesConfig
    ) -> None:
        """At every moment: nobody comes any more, and those in the line go on in strict order, without the others."""

        def observe(world: World, decision: Decision, now_s: float) -> None:
            line = _line(world, decision, queues, now_s)
            left = [item for item in coming if item.run.id in world.waiting]
            onward = simulate(left, CLUSTER, queues, world=world.copy(), from_s=now_s)
            alone = world.copy()
            alone.waiting = {run.id: run for run in line}
            strictly = simulate(left, CLUSTER, queues, policy=without_overtaking, world=alone, from_s=now_s)
            assert all(onward[run.id] <= strictly[run.id] for run in line)

        simulate(coming, CLUSTER, queues, observe=observe)

    @settings(quick, max_examples=examples(300))
    @given(coming=arrivals(), queues=patient_queues)
    def test_whoever_is_left_running_a_place_remains_for_who_waits(
        self, coming: list[Arrival], queues: QueuesConfig
    ) -> None:
        """Every set of those ahead that fits with a waiting run still fits once the lower ones have been started."""

        def observe(world: World, decision: Decision, now_s: float) -> None:
            line = _line(world, decision, queues, now_s)
            for place, run in enumerate(line):
                if run.id in decision.waits:
                    above: list[Waiting | Holding] = [*world.holding.values(), *line[:place]]
                    lower = [world.waiting[name] for name in decision.start if world.waiting[name] not in line[:place]]
                    for others in _every_set(above):
                        if _fit([run, *others], run):
                            assert _fit([run, *others, *lower], run)

        simulate(coming, CLUSTER, queues, observe=observe)

    @quick
    @given(coming=arrivals(), queues=patient_queues)
    def test_lower_ones_alone_never_keep_a_run_waiting(self, coming: list[Arrival], queues: QueuesConfig) -> None:
        """Whoever else comes: what was started below a run since it stands in the cluster's line leaves it a place."""
        since_s: dict[str, float] = {}

        def observe(world: World, decision: Decision, now_s: float) -> None:
            in_line = {name for name, wait in decision.waits.items() if "the cluster" in wait.reason}
            for name in set(since_s) - in_line:
                del since_s[name]
            ranked = [run.id for run in in_order([item.run for item in coming], queues, now_s)]
            for name in in_line:
                began_s = since_s.setdefault(name, now_s)
                lower = [
                    row
                    for row in rows_after(world, decision)
                    if ranked.index(row.id) > ranked.index(name) and world.started_s.get(row.id, math.inf) >= began_s
                ]
                assert _fit([world.waiting[name], *lower], world.waiting[name])

        simulate(coming, CLUSTER, queues, observe=observe)


def _check_nobody_is_later(coming: list[Arrival]) -> None:
    started = simulate(coming, CLUSTER, open_queues())
    strictly = simulate(coming, CLUSTER, open_queues(), policy=without_overtaking)
    assert all(started[name] <= strictly[name] for name in strictly)


def _line(world: World, decision: Decision, queues: QueuesConfig, now_s: float) -> list[Waiting]:
    """Those who start or stand in the cluster's line, as far as no one above them waits for anything else.

    Where nobody can get into the cluster any more, it is the reason that is given, whatever the limits of queue and
    user say; so these are looked at next to it: who is behind them is not in the cluster's line.
    """
    line: list[Waiting] = []
    for run in in_order(world.waiting.values(), queues, now_s):
        if run.id in decision.waits and "the cluster" not in decision.waits[run.id].reason:
            break
        if over([*world.holding.values(), *line, run], PLENTY, queues):
            break
        line.append(run)
    return line


def _every_set(rows: Sequence[Waiting | Holding]) -> Iterable[tuple[Waiting | Holding, ...]]:
    for size in range(len(rows) + 1):
        yield from combinations(rows, size)


def _fit(rows: Iterable[Waiting | Holding], run: Waiting) -> bool:
    """Whether these fit into the cluster together, as far as this run needs it."""
    return not any(name in run.need for _, name, _, _ in over(rows, CLUSTER, open_queues()))


SHORT_S = 5


@st.composite
def floods(draw: st.DrawFn, first_s: int = 0) -> list[Arrival]:
    """Short runs of high priority, one every second for long, far more than the cluster can hold."""
    random = Random(draw(st.integers()))
    coming = []
    for number in range(100):
        need = {"GPU": float(random.randint(1, 8)), "CPU": float(random.randint(1, 24))}
        queued_s = float(first_s + number)
        run = Waiting(f"flood-{number}", "q0", f"u{number % 2}", 9, queued_s, ADDRESS, need, need, 1)
        coming.append(Arrival(run, float(random.randint(1, SHORT_S))))
    return coming


class TestPatience:
    """Nobody waits for ever."""

    @settings(quick, max_examples=examples(30))
    @given(coming=floods(), victim=runs(0, latest_s=5, priorities=1), queues=any_queues)
    def test_no_run_of_low_priority_waits_for_ever(
        self, coming: list[Arrival], victim: Waiting, queues: QueuesConfig
    ) -> None:
        assume(not over([victim], CLUSTER, queues))
        # By then only those rank above it that were queued before it. Three lines, and the lengths of those.
        before = sum(item.run.queued_s <= victim.queued_s for item in coming)
        latest_s = victim.queued_s + queues.patience_s + 1 + 3 * SHORT_S + 4 * SHORT_S * before
        started = simulate([*coming, Arrival(victim, 1.0)], CLUSTER, queues, until_s=latest_s)
        assert victim.id in started

    @settings(quick, max_examples=examples(30))
    @given(coming=floods(first_s=1), victim=runs(0, latest_s=0, priorities=1), patience_s=st.integers(0, 60))
    def test_the_first_overdue_run_waits_for_what_runs_by_then_and_no_longer(
        self, coming: list[Arrival], victim: Waiting, patience_s: int
    ) -> None:
        overdue_s = float(patience_s + 1)
        ends_s = [overdue_s]

        def observe(world: World, decision: Decision, now_s: float) -> None:
            if now_s == overdue_s:
                ends_s.extend(world.ends_s.values())

        queues, until_s = open_queues(float(patience_s)), overdue_s + SHORT_S
        started = simulate([*coming, Arrival(victim, 1.0)], CLUSTER, queues, observe=observe, until_s=until_s)
        assert started[victim.id] <= max(ends_s)
