"""What the waiting runs of a queue wait for, in one word, and for how long."""

import pytest

from jobs.model import RunState
from jobs.scheduler.decision import Decision, WaitCause, WaitTotals
from jobs.scheduler.limits import Limits, QueuePart
from tests.jobs.scheduler.decisions import NOW_S, cluster, decided, held, queues, run

RESEARCH = queues(research=QueuePart(max_gpus=4, per_user=Limits(max_gpus=2)))
DECISIONS: dict[WaitCause, Decision] = {
    WaitCause.DEPENDENCY: decided(run("a", depends_on=("b",)), dependencies={"b": RunState.TRAINING}),
    WaitCause.RETRY: decided(run("a", not_before_s=NOW_S + 60)),
    WaitCause.PAUSED: decided(run("a"), queues=queues(default=QueuePart(max_running=0))),
    WaitCause.CLUSTER: decided(run("a", address="http://other:8265")),
    WaitCause.INFEASIBLE: decided(run("a", 32)),
    WaitCause.LIMIT: decided(
        run("a", 2, queue="research", user="bo"), holding=(held("b", 4, queue="research"),), queues=RESEARCH
    ),
    WaitCause.CAPACITY: decided(run("a", 8), holding=(held("b", 12),)),
    WaitCause.RESERVED: decided(
        run("a", 4, queued_s=NOW_S - 30), run("large", 16, queued_s=NOW_S - 60), holding=(held("b", 8),)
    ),
}


@pytest.mark.parametrize("cause", WaitCause)
def test_each_cause_is_told(cause: WaitCause) -> None:
    totals = DECISIONS[cause].waits.totals(NOW_S)
    assert cause in {found for _, found in totals}


def test_a_user_s_limit_counts_as_the_queue_s() -> None:
    decision = decided(run("a", 2, queue="research"), holding=(held("b", 2, queue="research"),), queues=RESEARCH)
    assert decision.waits.totals(NOW_S) == {("research", WaitCause.LIMIT): WaitTotals(1, 60.0, 60.0)}


def test_times_are_added_by_queue_and_cause() -> None:
    waiting = [run(f"r{waited}", 8, queued_s=NOW_S - waited) for waited in (10, 20, 30)]
    other, parts = run("other", 8, queue="other", queued_s=NOW_S + 5), queues(other=QueuePart())
    decision = decided(*waiting, other, on=cluster(4, grows_to=16), queues=parts)
    assert decision.start == ("r30", "r20")
    totals = decision.waits.totals(NOW_S)
    assert totals == {
        ("default", WaitCause.CAPACITY): WaitTotals(1, 10.0, 10.0),
        # Its clock is ahead of this one's.
        ("other", WaitCause.CAPACITY): WaitTotals(1, 0.0, 0.0),
    }
    assert decided().waits.totals(NOW_S) == {}
