"""The scheduling policy: which runs start, and the reasons of those that wait."""

import pytest

from jobs.model import MAX_BACKOFF_S, RunState
from jobs.scheduler.feasibility import Capacity
from jobs.scheduler.limits import Limits, QueuePart
from jobs.scheduler.policy import decide
from jobs.scheduler.pools import MAX_WAITING
from tests.jobs.scheduler.decisions import HERE, HOUR_S, NOW_S, cluster, decided, held, queues, reason, run


class TestRank:
    """The order of waiting runs."""

    def test_a_larger_priority_goes_first(self) -> None:
        decision = decided(run("low", 12), run("high", 12, priority=5, queued_s=NOW_S - 1))
        assert decision.start == ("high",)

    def test_among_equals_who_came_first_goes_first(self) -> None:
        decision = decided(run("later", 12, queued_s=NOW_S - 1), run("earlier", 12, queued_s=NOW_S - 2))
        assert decision.start == ("earlier",)

    def test_of_two_that_came_at_once_the_name_decides(self) -> None:
        assert decided(run("b", 12), run("a", 12)).start == ("a",)

    def test_who_has_waited_too_long_goes_before_any_priority(self) -> None:
        old = run("old", 12, queued_s=NOW_S - 7 * HOUR_S)
        older = run("older", 12, queued_s=NOW_S - 8 * HOUR_S, priority=-5)
        young = run("young", 12, priority=1000)
        decision = decided(young, old, older)
        assert decision.start == ("older",)
        assert [decision.waits[name].position for name in ("old", "young")] == [1, 2]

    def test_positions_are_counted_in_each_queue_without_those_that_start(self) -> None:
        parts = queues(a=QueuePart(), b=QueuePart())
        waiting = [run(f"{queue}{n}", 10, queue=queue, queued_s=NOW_S - 60 + n) for n in range(3) for queue in "ab"]
        decision = decided(*waiting, queues=parts)
        assert decision.start == ("a0",)
        positions = {name: wait.position for name, wait in decision.waits.items()}
        assert positions == {"a1": 1, "a2": 2, "b0": 1, "b1": 2, "b2": 3}


class TestGangs:
    """All or nothing."""

    def test_a_gang_that_fits_starts_whole(self) -> None:
        assert decided(run("one", 16, workers=16)).start == ("one",)

    def test_a_gang_that_does_not_fit_whole_waits(self) -> None:
        decision = decided(run("one", 8), holding=(held("other", 12),))
        assert decision.start == ()
        assert reason(decision, "one") == "needs 8 GPU; the cluster has 4 of 16 GPU free"

    def test_everything_that_is_short_is_named(self) -> None:
        decision = decided(run("one", 8, 100), holding=(held("other", 12, 950),))
        assert reason(decision, "one") == ("needs 100 CPU, 8 GPU; the cluster has 50 of 1000 CPU and 4 of 16 GPU free")

    def test_what_the_cluster_can_grow_to_is_there(self) -> None:
        assert decided(run("one", 12), on=cluster(4, grows_to=16)).start == ("one",)

    def test_resources_of_any_name_are_counted(self) -> None:
        on = Capacity(total={"license": 2.0}, can_grow_to={"license": 2.0})
        waiting = [run(f"run-{n}", need={"license": 1.0}) for n in range(3)]
        decision = decided(*waiting, on=on)
        assert decision.start == ("run-0", "run-1")
        assert reason(decision, "run-2") == "needs 1 license; the cluster has 0 of 2 license free"

    def test_memory_is_shown_in_gibibytes(self) -> None:
        on = Capacity(total={"memory": 8 * 2.0**30}, can_grow_to={})
        waiting = [run(name, need={"memory": 5 * 2.0**30}) for name in ("a", "b")]
        assert reason(decided(*waiting, on=on), "b") == "needs 5 GiB memory; the cluster has 3 GiB of 8 GiB memory free"

    def test_fractions_add_up(self) -> None:
        waiting = [run(f"run-{n}", 0.1) for n in range(10)]
        assert len(decided(*waiting, on=cluster(1)).start) == 10

    def test_what_is_called_free_is_what_is_left_after_the_decision(self) -> None:
        waiting = [run("large", 12, user="bob", priority=1), run("small", 1, 1)]
        decision = decided(*waiting, holding=(held("other", 14),), on=cluster(16))
        assert reason(decision, "large") == "needs 12 GPU; the cluster has 1 of 16 GPU free"


class TestLimits:
    """Limits of queues and users."""

    def test_a_queue_holds_no_more_gpus_than_it_may(self) -> None:
        parts = queues(research=QueuePart(max_gpus=8))
        decision = decided(run("one", 4, queue="research"), holding=(held("other", 6, queue="research"),), queues=parts)
        assert reason(decision, "one") == "needs 4 GPU; queue research holds 6 of 8 GPU that it allows"

    def test_a_user_holds_no_more_than_each_may(self) -> None:
        parts = queues(research=QueuePart(per_user=Limits(max_gpus=4)))
        waiting = [run("anas", 2, queue="research"), run("bobs", 2, queue="research", user="bob")]
        decision = decided(*waiting, holding=(held("other", 4, queue="research"),), queues=parts)
        assert decision.start == ("bobs",)
        assert reason(decision, "anas") == (
            "needs 2 GPU; user ana in queue research holds 4 of 4 GPU that queue research allows each user"
        )

    def test_a_users_limits_are_those_of_the_queue(self) -> None:
        parts = queues(a=QueuePart(per_user=Limits(max_gpus=4)), b=QueuePart(per_user=Limits(max_gpus=4)))
        assert decided(run("one", 4, queue="b"), holding=(held("other", 4, queue="a"),), queues=parts).start == ("one",)

    def test_cpus_are_limited_alike(self) -> None:
        parts = queues(default=QueuePart(max_cpus=8))
        assert reason(decided(run("one", 0, 6), holding=(held("other", 0, 4),), queues=parts), "one") == (
            "needs 6 CPU; queue default holds 4 of 8 CPU that it allows"
        )

    def test_the_number_of_runs_is_limited(self) -> None:
        parts = queues(default=QueuePart(max_running=3, per_user=Limits(max_running=2)))
        waiting = [run(f"run-{n}", 1) for n in range(3)] + [run(f"bobs-{n}", 1, user="bob") for n in range(2)]
        decision = decided(*waiting, queues=parts)
        assert decision.start == ("bobs-0", "bobs-1", "run-0")
        assert reason(decision, "run-1") == "queue default holds 3 of 3 runs that it allows"

    def test_limits_hold_over_all_clusters(self) -> None:
        parts = queues(default=QueuePart(max_running=1))
        other = "http://other:8265"
        decision = decided(
            run("one", 1), holding=(held("there", 1, address=other),), queues=parts, on={HERE: cluster(16)}
        )
        assert reason(decision, "one") == "queue default holds 1 of 1 run that it allows"

    def test_a_paused_queue_starts_nothing_and_says_so(self) -> None:
        parts = queues(night=QueuePart(max_running=0))
        decision = decided(run("one", 1, queue="night"), run("two", 1), queues=parts)
        assert decision.start == ("two",)
        assert reason(decision, "one") == "queue night is paused (max_running: 0)"

    def test_a_queue_may_be_paused_for_its_users(self) -> None:
        parts = queues(night=QueuePart(per_user=Limits(max_running=0)))
        assert "paused for every user" in reason(decided(run("one", 1, queue="night"), queues=parts), "one")


class TestOvertaking:
    """Back-filling: lower-ranked runs start ahead of a waiting one only if that cannot delay it."""

    def test_a_small_run_fills_the_place_that_a_waiting_large_one_cannot_use(self) -> None:
        """12 of 16 run; the large one needs those 12 to end, and then 8 of 16: another 8 stay free."""
        waiting = [run("large", 8, priority=1), run("small", 4)]
        assert decided(*waiting, holding=(held("running", 12),)).start == ("small",)

    def test_but_no_more_than_the_large_one_leaves(self) -> None:
        waiting = [run("large", 14, priority=1), *[run(f"small-{n}", 1) for n in range(4)]]
        decision = decided(*waiting, holding=(held("running", 12),))
        assert decision.start == ("small-0", "small-1")
        assert reason(decision, "small-2") == "needs 1 GPU; behind large, for which 14 GPU of the cluster are reserved"

    def test_not_where_the_large_one_may_start_when_only_some_have_ended(self) -> None:
        """10 fit as soon as the first 4 end; with the small ones in between, both would have to."""
        waiting = [run("large", 10, priority=1), run("small", 4)]
        running = (held("one", 4), held("two", 4))
        decision = decided(*waiting, holding=running)
        assert decision.start == ()
        assert "behind large" in reason(decision, "small")

    def test_not_where_two_waiting_ones_fill_the_place_together(self) -> None:
        waiting = [run("first", 8, priority=2), run("second", 8, priority=1), run("small", 4)]
        decision = decided(*waiting, holding=(held("running", 12),))
        assert decision.start == ()
        assert reason(decision, "small") == "needs 4 GPU; behind second, for which 8 GPU of the cluster are reserved"

    def test_two_that_never_fit_together_keep_the_place_of_one(self) -> None:
        waiting = [run("first", 10, priority=2), run("second", 10, priority=1), run("small", 4)]
        assert decided(*waiting, holding=(held("running", 12),)).start == ("small",)

    def test_runs_without_gpus_pass_those_that_wait_for_gpus(self) -> None:
        waiting = [run("gpus", 8, 8, priority=1), run("cpus", 0, 8)]
        assert decided(*waiting, holding=(held("running", 16, 16),), on=cluster(16, 64)).start == ("cpus",)

    def test_but_not_with_cpus_that_those_need(self) -> None:
        waiting = [run("gpus", 8, 40, priority=1), run("cpus", 0, 30)]
        decision = decided(*waiting, holding=(held("running", 12, 16),), on=cluster(16, 64))
        assert decision.start == ()
        assert reason(decision, "cpus") == "needs 30 CPU; behind gpus, for which 40 CPU of the cluster are reserved"

    def test_nor_with_cpus_that_the_second_of_those_needs(self) -> None:
        waiting = [run("first", 16, 8, priority=2), run("second", 16, 40, priority=1), run("cpus", 0, 30)]
        decision = decided(*waiting, holding=(held("running", 16),), on=cluster(16, 64))
        assert reason(decision, "cpus") == "needs 30 CPU; behind second, for which 40 CPU of the cluster are reserved"

    def test_another_cluster_has_pools_of_its_own(self) -> None:
        other = "http://other:8265"
        waiting = [run("large", 16, priority=1), run("there", 4, address=other)]
        on = {HERE: cluster(16), other: cluster(4)}
        assert decided(*waiting, holding=(held("running", 1),), on=on).start == ("there",)

    def test_a_run_that_waits_for_its_users_limit_does_not_block_other_users(self) -> None:
        parts = queues(default=QueuePart(per_user=Limits(max_gpus=8)))
        waiting = [run(f"anas-{n}", 8, priority=1) for n in range(5)] + [run("bobs", 8, user="bob")]
        decision = decided(*waiting, holding=(held("running", 8),), queues=parts)
        assert decision.start == ("bobs",)

    def test_but_blocks_lower_runs_of_the_same_user(self) -> None:
        parts = queues(default=QueuePart(per_user=Limits(max_gpus=8)))
        waiting = [run("anas", 8, priority=1), run("anas-small", 4)]
        decision = decided(*waiting, holding=(held("running", 4),), queues=parts)
        assert reason(decision, "anas-small") == (
            "needs 4 GPU; behind anas, for which 8 GPU of user ana in queue default are reserved"
        )

    def test_a_run_that_waits_for_the_cluster_keeps_its_place_in_the_queue(self) -> None:
        parts = queues(default=QueuePart(max_running=2))
        waiting = [run("gpus", 16, priority=1), run("cpus", 0, 1)]
        decision = decided(*waiting, holding=(held("running", 8),), queues=parts)
        assert decision.start == ()
        assert reason(decision, "cpus") == "behind gpus, for which 1 run of queue default is reserved"

    def test_a_run_that_waits_for_the_cluster_keeps_its_place_among_its_users(self) -> None:
        parts = queues(default=QueuePart(per_user=Limits(max_cpus=8)))
        waiting = [run("gpus", 16, 6, priority=1), run("cpus", 0, 4), run("bobs", 0, 4, user="bob")]
        decision = decided(*waiting, holding=(held("running", 8, user="bob"),), queues=parts)
        assert decision.start == ("bobs",)
        assert reason(decision, "cpus") == (
            "needs 4 CPU; behind gpus, for which 6 CPU of user ana in queue default are reserved"
        )

    def test_no_run_overtakes_more_than_the_limit(self) -> None:
        waiting = [run(f"large-{n:03}", 10, priority=1) for n in range(MAX_WAITING)] + [run("small", 4)]
        one_more = run("one-more", 10, priority=1)
        running = (held("running", 12),)
        assert decided(*waiting, holding=running).start == ("small",)
        decision = decided(*waiting, one_more, holding=running)
        assert decision.start == ()
        assert reason(decision, "small") == f"needs 4 GPU; behind {MAX_WAITING} runs that wait for the cluster"


class TestOtherReasons:
    """Runs that wait for something other than resources do not block others."""

    def test_a_run_waits_for_anothers_success(self) -> None:
        waiting = [run("one", 16, priority=1, depends_on=("prep-1",)), run("two", 16)]
        decision = decided(*waiting, dependencies={"prep-1": RunState.TRAINING})
        assert decision.start == ("two",)
        assert reason(decision, "one") == "waits for run prep-1 (TRAINING)"
        assert decided(*waiting, dependencies={"prep-1": RunState.SUCCEEDED}).start == ("one",)

    def test_all_of_them_must_have_succeeded(self) -> None:
        """A diamond: the last waits for both that wait for the first."""
        last = run("last", 1, depends_on=("left", "right"))
        states = {"left": RunState.SUCCEEDED, "right": RunState.QUEUED}
        assert reason(decided(last, dependencies=states), "last") == "waits for run right (QUEUED)"
        assert decided(last, dependencies=dict.fromkeys(("left", "right"), RunState.SUCCEEDED)).start == ("last",)

    def test_a_chain_waits_link_by_link(self) -> None:
        chain = [run("b", 1, depends_on=("a",)), run("c", 1, depends_on=("b",))]
        decision = decided(*chain, dependencies={"a": RunState.SUCCEEDED, "b": RunState.QUEUED})
        assert decision.start == ("b",)
        assert reason(decision, "c") == "waits for run b (QUEUED)"

    @pytest.mark.parametrize("state", [RunState.FAILED, RunState.STOPPED])
    def test_a_run_whose_dependency_failed_can_never_start(self, state: RunState) -> None:
        one = run("one", 1, depends_on=("fine", "bad"))
        decision = decided(one, dependencies={"fine": RunState.QUEUED, "bad": state})
        assert (decision.start, dict(decision.waits)) == ((), {})
        assert decision.refuse == {"one": f"depends on run bad, which is {state}: resume bad first, then this run"}

    def test_a_dependency_that_is_not_known_is_waited_for(self) -> None:
        assert "waits for run ghost, which this ledger does not know" in reason(
            decided(run("one", 1, depends_on=("ghost",))), "one"
        )

    def test_a_retry_waits_for_its_time(self) -> None:
        waiting = [run("one", 16, priority=1, not_before_s=NOW_S + 30), run("two", 16)]
        decision = decided(*waiting)
        assert decision.start == ("two",)
        assert reason(decision, "one") == "retries at 1970-01-02 03:47:10 UTC"
        assert decided(run("one", 16, not_before_s=NOW_S)).start == ("one",)

    def test_a_clock_that_was_set_back_does_not_stop_a_retry(self) -> None:
        assert decided(run("one", 16, not_before_s=NOW_S + MAX_BACKOFF_S)).start == ()
        assert decided(run("one", 16, not_before_s=NOW_S + 86_400.0)).start == ("one",)

    def test_a_cluster_that_does_not_respond_blocks_its_own_runs_only(self) -> None:
        waiting = [run("there", 16, priority=1, address="http://gone:8265"), run("here", 16)]
        decision = decided(*waiting)
        assert decision.start == ("here",)
        assert reason(decision, "there") == "waits for the cluster at http://gone:8265, which does not respond"
        known = decide(waiting, (), {}, queues(), {}, NOW_S, {"http://gone:8265": "http://gone:8265 refuses the token"})
        assert reason(known, "there") == "waits for the cluster at http://gone:8265: refuses the token"

    def test_what_does_not_fit_even_an_empty_cluster_keeps_no_room(self) -> None:
        waiting = [run("large", 32, workers=16, priority=1), run("small", 16)]
        decision = decided(*waiting)
        assert decision.start == ("small",)
        assert reason(decision, "large").startswith(
            f"scaling.num_workers 16 × 2 GPU = 32 GPU, but the cluster at {HERE} has 16 GPU"
        )

    def test_a_run_of_a_queue_that_is_gone_waits_and_says_so(self) -> None:
        decision = decided(run("one", 1, queue="gone"), queues=queues(night=QueuePart()))
        assert "job.queue gone is not one of the queues default, night" in reason(decision, "one")

    def test_more_that_runs_than_may_is_left_alone(self) -> None:
        """A node was lost, or a limit lowered: nothing is free, and nothing is negative."""
        decision = decided(run("one", 1), holding=(held("running", 24),))
        assert reason(decision, "one") == "needs 1 GPU; the cluster has 0 of 16 GPU free"

    def test_nothing_waits_and_nothing_happens(self) -> None:
        decision = decided()
        assert (decision.start, dict(decision.waits), decision.refuse) == ((), {}, {})
