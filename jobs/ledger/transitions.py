"""Which state may follow which. Pure.

A run waits (QUEUED, RETRYING, PREEMPTED), then an attempt of it holds the gang, then it waits again or has ended.
What an attempt does is observed, late or not at all, and its workers may start over: its phases come in any order.
"""

from jobs.model import ENDED, WAITING, RunState

HOLDING = frozenset(state for state in RunState if state.holding)

_FROM_WAITING = frozenset({RunState.SETTING_UP, RunState.FAILED, RunState.STOPPED})
_AFTER_ATTEMPT = frozenset({RunState.RETRYING, RunState.PREEMPTED}) | ENDED

TRANSITIONS: dict[RunState, frozenset[RunState]] = {
    **dict.fromkeys(WAITING, _FROM_WAITING),
    **{state: (HOLDING - {state}) | _AFTER_ATTEMPT for state in HOLDING},
    RunState.SUCCEEDED: frozenset(),
    RunState.FAILED: frozenset({RunState.QUEUED}),
    RunState.STOPPED: frozenset({RunState.QUEUED}),
}


def may_follow(before: RunState, after: RunState) -> bool:
    """Whether a run that is in `before` may be put in `after`; staying where it is always may be."""
    return before == after or after in TRANSITIONS[before]
