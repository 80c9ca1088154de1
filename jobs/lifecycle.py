"""The life of a run: its states, and one table of what may follow what, checked for contradictions at import."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class RunState(StrEnum):
    """What a run is doing. Each state comes with one line of reason; LIFE says what may follow."""

    QUEUED = "QUEUED"
    SETTING_UP = "SETTING_UP"
    WAITING_FOR_RESOURCES = "WAITING_FOR_RESOURCES"
    PREPARING_DATA = "PREPARING_DATA"
    TRAINING = "TRAINING"
    EVALUATING = "EVALUATING"
    RETRYING = "RETRYING"
    PREEMPTED = "PREEMPTED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    STOPPED = "STOPPED"

    @property
    def ended(self) -> bool:
        """Whether nothing more happens unless a user resumes the run."""
        return self in ENDED

    @property
    def waiting(self) -> bool:
        """Whether the run waits to be admitted, and holds nothing of the cluster."""
        return self in WAITING

    @property
    def holding(self) -> bool:
        """Whether an attempt of the run holds its gang."""
        return self in HOLDING


class StateKind(StrEnum):
    """What the states of a run have in common."""

    WAITING = "WAITING"  # to be admitted, nothing held
    HOLDING = "HOLDING"  # an attempt holds the gang
    ENDED = "ENDED"


@dataclass(frozen=True, slots=True)
class StateRule:
    """One row of the life of a run: the states that it may be put in next; staying is always allowed."""

    kind: StateKind
    followed_by: frozenset[RunState]


_PHASES = frozenset(
    {
        RunState.SETTING_UP,
        RunState.WAITING_FOR_RESOURCES,
        RunState.PREPARING_DATA,
        RunState.TRAINING,
        RunState.EVALUATING,
    }
)
_WAITS = StateRule(StateKind.WAITING, frozenset({RunState.SETTING_UP, RunState.FAILED, RunState.STOPPED}))
# What an attempt does is observed, late or not at all, and its workers may start over: its phases come in any order.
_HOLDS = StateRule(
    StateKind.HOLDING,
    _PHASES | {RunState.RETRYING, RunState.PREEMPTED, RunState.SUCCEEDED, RunState.FAILED, RunState.STOPPED},
)
_RESUMABLE = StateRule(StateKind.ENDED, frozenset({RunState.QUEUED}))

# The life of a run: it waits, an attempt of it holds the gang, then it waits again or has ended.
LIFE: Mapping[RunState, StateRule] = {
    RunState.QUEUED: _WAITS,
    RunState.SETTING_UP: _HOLDS,
    RunState.WAITING_FOR_RESOURCES: _HOLDS,
    RunState.PREPARING_DATA: _HOLDS,
    RunState.TRAINING: _HOLDS,
    RunState.EVALUATING: _HOLDS,
    RunState.RETRYING: _WAITS,
    RunState.PREEMPTED: _WAITS,
    RunState.SUCCEEDED: StateRule(StateKind.ENDED, frozenset()),
    RunState.FAILED: _RESUMABLE,
    RunState.STOPPED: _RESUMABLE,
}


def may_follow(before: RunState, after: RunState) -> bool:
    """Whether a run in state `before` may be put in state `after`."""
    return before == after or after in LIFE[before].followed_by


def check_life(life: Mapping[RunState, StateRule]) -> None:
    """Checks the table of transitions for contradictions.

    Raises:
        ValueError: a state is missing, cannot be reached or left, or is entered from where it must not be.
    """
    if missing := set(RunState) - set(life):
        raise ValueError(f"states without a row: {sorted(missing)}")
    for state, rule in life.items():
        for after in rule.followed_by:
            kinds = (rule.kind, life[after].kind)
            if kinds in (
                (StateKind.WAITING, StateKind.WAITING),
                (StateKind.ENDED, StateKind.ENDED),
                (StateKind.ENDED, StateKind.HOLDING),
            ):
                raise ValueError(f"{state} is {kinds[0]} and must not be followed by {after}, which is {kinds[1]}")
            if kinds == (StateKind.WAITING, StateKind.HOLDING) and after != RunState.SETTING_UP:
                raise ValueError(f"{state} is followed by {after}: an attempt begins with SETTING_UP")
            if kinds == (StateKind.ENDED, StateKind.WAITING) and after != RunState.QUEUED:
                raise ValueError(f"{state} is followed by {after}: a run that is resumed is QUEUED")
        if rule.kind != StateKind.ENDED and RunState.STOPPED not in rule.followed_by:
            raise ValueError(f"{state} is not followed by STOPPED: a user may stop every run that has not ended")
    entered = {RunState.QUEUED}.union(*(rule.followed_by - {state} for state, rule in life.items()))
    if unreachable := set(life) - entered:
        raise ValueError(f"states that nothing leads to: {sorted(unreachable)}")


check_life(LIFE)
WAITING, HOLDING, ENDED = (
    frozenset(state for state, rule in LIFE.items() if rule.kind == kind)
    for kind in (StateKind.WAITING, StateKind.HOLDING, StateKind.ENDED)
)
