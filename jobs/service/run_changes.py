"""Every change that the controller makes to a run: decided by pure functions, written by one function.

    admitted → submitted → observed … → ended     the life of an attempt
    refused, blocked                              other changes of a run

Each function takes the records and returns the complete change: state, reason, event, time of a retry, and changes of
the newest attempt. Only `write` writes changes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jobs.ledger import Lease, Ledger
from jobs.model import STOPPED_EXIT_CODE, Attempt, AttemptState, Progress, Run, RunState, submission_id_of
from jobs.service.retry_policy import decide_retry

# Fields of an attempt that change after it was added.
_ATTEMPT_CHANGES = {"state", "submitted_s", "ended_s", "cause", "exit_code", "message", "last_step"}


@dataclass(frozen=True, kw_only=True)
class RunChange:
    """A change of a run and of its newest attempt, written in one transaction.

    Attributes:
        run: The run as it was read; if it has changed since, the change is not written.
        event: The event's cause, for programs. None for no event.
        text: The event's line for people. "" for the same as `reason`.
        fields: Other fields of the run that change.
        attempt: The newest attempt after the change. None if it does not change.
    """

    run: Run
    event: str | None
    text: str = ""
    state: RunState
    reason: str
    at_s: float
    fields: Mapping[str, Any] = field(default_factory=dict)
    attempt: Attempt | None = None


def write(ledger: Ledger, lease: Lease, change: RunChange) -> Run:
    """Writes a change in one transaction; returns the changed run.

    Raises:
        RunChangedError: the run has changed since it was read.
        LeaseLostError: another controller has taken over.
    """
    attempt = change.attempt
    with ledger.write(lease) as writer:
        if attempt is not None and attempt.number != change.run.attempt:
            writer.open_attempt(attempt)
        elif attempt is not None:
            writer.change_attempt(attempt.run_id, attempt.number, **attempt.model_dump(include=_ATTEMPT_CHANGES))
        return writer.change(
            change.run,
            cause=change.event or "",
            text=change.text or change.reason,
            state=change.state,
            reason=change.reason,
            at_s=change.at_s,
            event=change.event is not None,
            **change.fields,
        )


def admitted(run: Run, *, number: int, checkpoint: str | None, start: str, now_s: float) -> RunChange:
    """Returns the change of a run that now holds its gang; Ray has not been called yet.

    `checkpoint` is the last known checkpoint, from which the attempt starts unless there is a newer one; None without
    one. `start` describes it as text.
    """
    attempt = Attempt(
        run_id=run.id,
        number=number,
        submission_id=submission_id_of(run.id, number),
        state=AttemptState.SUBMITTING,
        gang=run.gang,
        resume_from=checkpoint,
        created_s=now_s,
    )
    return RunChange(
        run=run,
        event="admitted",
        text=f"attempt {number} starts from {start}",
        state=RunState.SETTING_UP,
        reason="being submitted to Ray",
        at_s=now_s,
        fields={"attempt": number, "not_before_s": None, "progress": _carried(run, None)},
        attempt=attempt,
    )


def submitted(run: Run, attempt: Attempt, *, started: bool, now_s: float) -> RunChange:
    """Returns the change after Ray has accepted the attempt; `started` is False if it had accepted it before."""
    return RunChange(
        run=run,
        event="ray_submitted",
        text=f"Ray has accepted {attempt.submission_id}" + ("" if started else " (it was submitted before)"),
        state=run.state,
        reason="Ray sets up the runtime environment",
        at_s=now_s,
        attempt=attempt.model_copy(update={"state": AttemptState.SUBMITTED, "submitted_s": now_s}),
    )


def observed(run: Run, *, state: RunState, reason: str, progress: Progress | None, now_s: float) -> RunChange | None:
    """Returns the change of an active run; None if nothing has changed. New states and restarts are events."""
    moved = state != run.state
    progress = _carried(run, progress)
    if not moved and reason == run.reason and progress == run.progress:
        return None
    known = run.progress.restarts if run.progress is not None else 0
    event, text = "phase" if moved else None, ""
    if progress is not None and progress.restarts > known:
        again = f"workers of attempt {run.attempt}: {progress.restarts_text}"
        event, text = ("phase", f"{reason}; {again}") if moved else ("restart", again)
    fields = {"progress": progress}
    return RunChange(run=run, event=event, text=text, state=state, reason=reason, at_s=now_s, fields=fields)


def ended(
    run: Run, closed: Attempt, earlier: Sequence[Attempt], *, progress: Progress | None, left: str, now_s: float
) -> RunChange:
    """Returns the change after an attempt has ended: the run also ends, or waits for its next attempt.

    `earlier` are the attempts before it since a user last submitted or resumed the run. `left` is text on a stopped
    run's last checkpoint.
    """
    closed = closed.model_copy(update={"state": AttemptState.ENDED, "ended_s": now_s})
    decision = decide_retry([*earlier, closed], run.max_retries)
    state, reason, exit_code = decision.state, decision.reason, closed.exit_code
    if run.stop_requested_s is not None and state != RunState.SUCCEEDED:
        state, reason, exit_code = RunState.STOPPED, f"stopped; {left}", STOPPED_EXIT_CODE
    elif state == RunState.SUCCEEDED and progress is not None and progress.detail:
        reason = progress.detail
    fields = {
        "exit_code": exit_code if state.ended else None,
        "ended_s": now_s if state.ended else None,
        "not_before_s": None if state.ended else now_s + decision.backoff_s,
        "progress": _carried(run, progress),
    }
    text = f"attempt {closed.number} ended: {closed.cause} · {reason}"
    return RunChange(
        run=run, event="ended", text=text, state=state, reason=reason, at_s=now_s, fields=fields, attempt=closed
    )


def _carried(run: Run, progress: Progress | None) -> Progress | None:
    """Returns an attempt's progress, with earlier values that its status file does not have.

    These are the duration of a checkpoint, which an earlier attempt may have measured, and the number of restarts of
    workers, which the driver does not write while workers start.
    """
    before = run.progress or Progress(phase="")
    kept: dict[str, Any] = {}
    if before.checkpoint_s is not None and (progress is None or progress.checkpoint_s is None):
        kept["checkpoint_s"] = before.checkpoint_s
    if progress is not None and progress.restarts < before.restarts:
        kept |= {"restarts": before.restarts, "restart_reason": before.restart_reason}
    return (progress or Progress(phase="")).model_copy(update=kept) if kept else progress


def refused(run: Run, *, reason: str, now_s: float) -> RunChange | None:
    """Returns the change of a run that can never start to FAILED; None if it no longer waits."""
    if not run.state.waiting:
        return None
    failed, fields = RunState.FAILED, {"ended_s": now_s}
    return RunChange(run=run, event="refused", state=failed, reason=reason, at_s=now_s, fields=fields)


def blocked(run: Run, *, reason: str, event: str, now_s: float) -> RunChange | None:
    """Returns the change of a run that the controller cannot advance; None if the reason is the same as before."""
    if run.reason == reason or run.state.ended:
        return None
    return RunChange(run=run, event=event, state=run.state, reason=reason, at_s=now_s)
