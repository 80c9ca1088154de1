"""The life of a run: its states, and what may follow what.

A run waits to be admitted, an attempt of it holds its gang, then it waits again or has ended.
"""

from collections.abc import Mapping
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


WAITING = frozenset({RunState.QUEUED, RunState.RETRYING, RunState.PREEMPTED})
ENDED = frozenset({RunState.SUCCEEDED, RunState.FAILED, RunState.STOPPED})
HOLDING = frozenset(RunState) - WAITING - ENDED

# The states that a run may be put in next; staying is always allowed.
LIFE: Mapping[RunState, frozenset[RunState]] = {
    **dict.fromkeys(WAITING, frozenset({RunState.SETTING_UP, RunState.FAILED, RunState.STOPPED})),
    # What an attempt does is observed, late or not at all, and its workers may start over: phases come in any order.
    **dict.fromkeys(HOLDING, HOLDING | ENDED | {RunState.RETRYING, RunState.PREEMPTED}),
    RunState.SUCCEEDED: frozenset(),
    RunState.FAILED: frozenset({RunState.QUEUED}),
    RunState.STOPPED: frozenset({RunState.QUEUED}),
}


def may_follow(before: RunState, after: RunState) -> bool:
    """Whether a run in state `before` may be put in state `after`."""
    return before == after or after in LIFE[before]


def name_is_taken(run_id: str, state: RunState) -> str:
    """What to say of a new run that has the name of one that is known."""
    resume = f"continue it (`rayscribe resume {run_id}`), or " if RunState.QUEUED in LIFE[state] else ""
    return f"run {run_id} exists already, {state}: {resume}give another name (--set run.name=…)"
