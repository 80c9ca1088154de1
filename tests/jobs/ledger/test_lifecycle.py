import pytest

from jobs.ledger import Ledger
from jobs.model import ENDED, HOLDING, LIFE, WAITING, RunState, may_follow
from tests.jobs.ledger.builders import add_in_state

# Rows: before; columns: after; x: allowed; =: stays.
TABLE = """
                       Q S W P T E R M + F .
QUEUED                 = x . . . . . . . x x
SETTING_UP             . = x x x x x x x x x
WAITING_FOR_RESOURCES  . x = x x x x x x x x
PREPARING_DATA         . x x = x x x x x x x
TRAINING               . x x x = x x x x x x
EVALUATING             . x x x x = x x x x x
RETRYING               . x . . . . = . . x x
PREEMPTED              . x . . . . . = . x x
SUCCEEDED              . . . . . . . . = . .
FAILED                 x . . . . . . . . = .
STOPPED                x . . . . . . . . . =
"""


def pairs() -> list[tuple[RunState, RunState, str]]:
    lines = [line.split() for line in TABLE.strip().splitlines()[1:]]
    order = [RunState(line[0]) for line in lines]
    return [(RunState(line[0]), after, mark) for line in lines for after, mark in zip(order, line[1:], strict=True)]


def test_every_pair_of_states_is_decided() -> None:
    assert set(LIFE) == set(RunState)
    assert len(pairs()) == len(RunState) ** 2
    assert sorted([*WAITING, *HOLDING, *ENDED]) == sorted(RunState), "each is of one kind"


@pytest.mark.parametrize(("before", "after", "mark"), pairs())
def test_a_state_is_followed_as_the_table_says(before: RunState, after: RunState, mark: str) -> None:
    assert may_follow(before, after) == (mark != ".")


@pytest.mark.parametrize("before", sorted(RunState))
def test_the_ledger_holds_to_the_table(ledger: Ledger, before: RunState) -> None:
    run = add_in_state(ledger, "r", before)
    for after in RunState:
        if may_follow(before, after):
            continue
        with pytest.raises(AssertionError, match=f"{before} is never followed by {after}"), ledger.write() as writer:
            writer.change(run, cause="test", text="", state=after, at_s=1.0)
    assert ledger.run("r") == run
