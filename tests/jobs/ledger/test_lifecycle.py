import pytest

from jobs.ledger import Ledger
from jobs.lifecycle import LIFE, RunState, StateKind, StateRule, check_life, may_follow
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


CONTRADICTIONS = {
    "without a row": (RunState.TRAINING, None),
    "an attempt begins with SETTING_UP": (
        RunState.QUEUED,
        StateRule(StateKind.WAITING, frozenset({RunState.TRAINING})),
    ),
    "a run that is resumed is QUEUED": (RunState.FAILED, StateRule(StateKind.ENDED, frozenset({RunState.RETRYING}))),
    "a user may stop every run": (RunState.RETRYING, StateRule(StateKind.WAITING, frozenset({RunState.SETTING_UP}))),
    "must not be followed by": (RunState.QUEUED, StateRule(StateKind.WAITING, frozenset({RunState.PREEMPTED}))),
}


@pytest.mark.parametrize("message", CONTRADICTIONS)
def test_a_table_that_contradicts_itself_is_refused(message: str) -> None:
    state, rule = CONTRADICTIONS[message]
    life = {**LIFE, state: rule} if rule is not None else {name: LIFE[name] for name in LIFE if name != state}
    with pytest.raises(ValueError, match=message):
        check_life(life)


def test_a_state_that_nothing_leads_to_is_refused() -> None:
    life = {name: StateRule(rule.kind, rule.followed_by - {RunState.EVALUATING}) for name, rule in LIFE.items()}
    with pytest.raises(ValueError, match=r"nothing leads to: .*EVALUATING"):
        check_life(life)
