import pytest

from jobs.ledger import Ledger
from jobs.model import HOLDING, WAITING, Gang, RunState
from jobs.scheduler.decision import Holding, Waiting
from tests.jobs.ledger.builders import add, add_in_state, move_to

GANG = Gang(num_workers=3, resources_per_worker={"CPU": 4.0, "GPU": 0.5}, extra={"CPU": 2.0, "slot": 1.0})
NEED = {"CPU": 14.0, "GPU": 1.5, "slot": 1.0}


@pytest.mark.parametrize("state", sorted(WAITING))
def test_a_waiting_run_is_shown_to_the_policy_as_it_was_submitted(ledger: Ledger, state: RunState) -> None:
    for name in ("x", "y"):
        add(ledger, name)
        ledger.requests.request_stop(name, by="ana", at_s=1.0)
        ledger.requests.reopen(name, by="ana", at_s=2.0)
    run = add(ledger, "r", queue="night", user="ben", priority=3, gang=GANG, depends_on=["y", "x"], queued_s=7.25)
    move_to(ledger, run, state, not_before_s=8.5)
    (row,) = [row for row in ledger.scheduler.waiting() if row.id == "r"]
    assert row == Waiting(
        id="r",
        queue="night",
        user="ben",
        priority=3,
        queued_s=7.25,
        address="http://127.0.0.1:8265",
        need=NEED,
        per_worker={"CPU": 4.0, "GPU": 0.5},
        num_workers=3,
        depends_on=("y", "x"),
        not_before_s=8.5,
    )


@pytest.mark.parametrize("state", sorted(HOLDING))
def test_a_run_that_holds_its_gang_is_shown_to_the_policy(ledger: Ledger, state: RunState) -> None:
    run = move_to(ledger, add(ledger, "r", queue="night", user="ben", priority=3, gang=GANG, queued_s=7.25), state)
    (row,) = ledger.scheduler.holding()
    assert row == Holding(
        id="r", queue="night", user="ben", priority=3, queued_s=7.25, address="http://127.0.0.1:8265", need=NEED
    )
    assert ledger.active_runs() == [run]


def test_every_run_waits_or_holds_or_has_ended(ledger: Ledger) -> None:
    for state in RunState:
        add_in_state(ledger, f"in-{state}", state)
    assert {row.id for row in ledger.scheduler.waiting()} == {f"in-{state}" for state in WAITING}
    assert {row.id for row in ledger.scheduler.holding()} == {f"in-{state}" for state in HOLDING}
    assert [run.id for run in ledger.active_runs()] == sorted(f"in-{state}" for state in HOLDING)


def test_states_of_dependencies_are_told_for_those_that_are_there(ledger: Ledger) -> None:
    add(ledger, "a")
    add_in_state(ledger, "b", RunState.SUCCEEDED)
    assert ledger.scheduler.states([]) == {}
    # More names than a statement of SQLite's takes.
    names = ["b", "a", "a", *(f"ghost-{number}" for number in range(40_000))]
    assert ledger.scheduler.states(names) == {"a": RunState.QUEUED, "b": RunState.SUCCEEDED}


def test_runs_are_counted_by_queue_and_state(ledger: Ledger) -> None:
    assert ledger.usage.runs() == {}
    for number in range(3):
        add(ledger, f"d{number}")
    add(ledger, "n", queue="night")
    add_in_state(ledger, "t", RunState.TRAINING, queue="night")
    ledger.requests.request_stop("d0", by="ana", at_s=2.0)
    assert ledger.usage.runs() == {
        ("default", RunState.QUEUED): 2,
        ("default", RunState.STOPPED): 1,
        ("night", RunState.QUEUED): 1,
        ("night", RunState.TRAINING): 1,
    }
