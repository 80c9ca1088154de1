"""The lifecycle of a run: its states, and the transitions between them.

A run waits to be admitted, an attempt of it holds its gang, then the run waits again or has ended.
"""

from collections.abc import Mapping
from enum import StrEnum


class RunState(StrEnum):
    """State of a run. Each comes with one line of reason; LIFE has the allowed transitions."""

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
        """True if the run has ended, and only a user can resume it."""
        return self in ENDED

    @property
    def waiting(self) -> bool:
        """True if the run waits to be admitted, and holds nothing of the cluster."""
        return self in WAITING

    @property
    def holding(self) -> bool:
        """True if an attempt of the run holds its gang."""
        return self in HOLDING


WAITING = frozenset({RunState.QUEUED, RunState.RETRYING, RunState.PREEMPTED})
ENDED = frozenset({RunState.SUCCEEDED, RunState.FAILED, RunState.STOPPED})
HOLDING = frozenset(RunState) - WAITING - ENDED

# The next states that a run may have; staying is always allowed.
LIFE: Mapping[RunState, frozenset[RunState]] = {
    **dict.fromkeys(WAITING, frozenset({RunState.SETTING_UP, RunState.FAILED, RunState.STOPPED})),
    # States of an attempt are observed late or not at all, and its workers may restart: phases come in any order.
    **dict.fromkeys(HOLDING, HOLDING | ENDED | {RunState.RETRYING, RunState.PREEMPTED}),
    RunState.SUCCEEDED: frozenset(),
    RunState.FAILED: frozenset({RunState.QUEUED}),
    RunState.STOPPED: frozenset({RunState.QUEUED}),
}


def may_follow(before: RunState, after: RunState) -> bool:
    """Returns True if a run in state `before` may change to state `after`."""
    return before == after or after in LIFE[before]


def name_is_taken(run_id: str, state: RunState) -> str:
    """Returns the message for a new run whose name a known run has."""
    resume = f"continue it (`rayscribe resume {run_id}`), or " if RunState.QUEUED in LIFE[state] else ""
    return f"run {run_id} exists already, {state}: {resume}give another name (--set run.name=…)"
