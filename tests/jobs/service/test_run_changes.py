"""What becomes of a run is decided without a ledger, a cluster or a clock."""

import pytest

from jobs.model import STOPPED_EXIT_CODE, AttemptState, Cause, Progress, Run, RunState, may_follow
from jobs.service.retry_policy import RULES
from jobs.service.run_changes import RunChange, admitted, blocked, ended, observed, refused
from jobs.submission.ray_request import build_request
from tests.jobs.ledger.builders import make_attempt
from tests.jobs.sample import sample_run

NOW_S = 5000.0


def training(**fields: object) -> Run:
    """A run in its first attempt."""
    return sample_run(state=RunState.TRAINING, reason="step 3/9", attempt=1, **fields)


def end_of(run: Run, cause: Cause, exit_code: int | None = None, detail: str = "") -> RunChange:
    """What is made of a run's first attempt that ended so."""
    progress = Progress(phase="ENDED", detail=detail)
    closed = make_attempt(run.id, cause=cause, exit_code=exit_code, message="message", last_step=3)
    return ended(run, closed, [], progress=progress, left="checkpoint c is in /runs", now_s=NOW_S)


@pytest.mark.parametrize("cause", sorted(Cause))
@pytest.mark.parametrize("stop_requested_s", [None, 4000.0])
def test_every_end_leads_to_a_state_that_the_life_of_a_run_allows(cause: Cause, stop_requested_s: float | None) -> None:
    run = training(stop_requested_s=stop_requested_s)
    change = end_of(run, cause)
    assert may_follow(run.state, change.state)
    assert change.attempt is not None
    assert (change.attempt.state, change.attempt.cause, change.attempt.last_step) == (AttemptState.ENDED, cause, 3)
    assert (change.fields["ended_s"] is None) == (change.fields["not_before_s"] is not None) == change.state.waiting
    assert change.reason in change.text


def test_a_retry_waits_for_its_backoff_and_keeps_no_exit_code() -> None:
    change = end_of(training(), Cause.STORAGE, 4)
    assert change.state == RunState.RETRYING
    assert change.fields["not_before_s"] == NOW_S + RULES[Cause.STORAGE].first_backoff_s
    assert change.fields["exit_code"] is None


def test_a_stop_wins_over_a_failure_and_success_over_a_stop() -> None:
    run = training(stop_requested_s=4000.0)
    failed = end_of(run, Cause.NODE_LOST, 11)
    assert (failed.state, failed.reason) == (RunState.STOPPED, "stopped; checkpoint c is in /runs")
    assert failed.fields["exit_code"] == STOPPED_EXIT_CODE
    succeeded = end_of(run, Cause.SUCCEEDED, 0, detail="WER 6.0% on test")
    assert (succeeded.state, succeeded.reason) == (RunState.SUCCEEDED, "WER 6.0% on test")


def test_an_attempt_is_opened_with_the_change_that_admits_its_run() -> None:
    change = admitted(sample_run(), number=4, checkpoint=None, start="scratch", now_s=NOW_S)
    assert change.attempt is not None
    assert (change.attempt.number, change.fields["attempt"]) == (4, 4)
    assert (change.state, change.text) == (RunState.SETTING_UP, "attempt 4 starts from scratch")


def test_how_long_a_checkpoint_takes_goes_with_the_run_to_its_next_attempts() -> None:
    def after(run: Run, change: RunChange | None) -> Run:
        assert change is not None
        return run.model_copy(update={"state": change.state, "reason": change.reason, **change.fields})

    run = after(training(), observed(training(), state=RunState.TRAINING, reason="", progress=measured(400.0), now_s=1))
    run = after(run, end_of(run, Cause.NODE_LOST, 11))
    run = after(run, admitted(run, number=2, checkpoint="c", start="c", now_s=NOW_S))
    assert run.progress == Progress(phase="", checkpoint_s=400.0), "nothing else of the attempt before"
    variables = build_request(run, 2, package="p.zip", resume="c").runtime_env["env_vars"]
    assert variables["RAY_JOB_STOP_WAIT_TIME_S"] == "1200"
    starting = Progress(phase="TRAINING", step=3)
    run = after(run, observed(run, state=RunState.TRAINING, reason="", progress=starting, now_s=NOW_S))
    assert run.progress == starting.model_copy(update={"checkpoint_s": 400.0})
    run = after(run, observed(run, state=RunState.TRAINING, reason="s", progress=measured(50.0), now_s=NOW_S))
    assert run.progress == measured(50.0)


def test_workers_that_are_started_again_are_an_event_and_stay_known_within_the_attempt() -> None:
    def after(run: Run, change: RunChange | None) -> Run:
        assert change is not None
        return run.model_copy(update={"state": change.state, "reason": change.reason, **change.fields})

    run = training(progress=Progress(phase="TRAINING"))
    again = Progress(phase="TRAINING", restarts=1, restart_reason="rank 1 died")
    change = observed(run, state=run.state, reason=run.reason, progress=again, now_s=NOW_S)
    assert change is not None
    assert (change.event, change.text) == (
        "restart",
        "workers of attempt 1: 1 restart within the attempt, after: rank 1 died",
    )
    # A new state that is seen with it stays a phase, which programs wait for.
    both = observed(run, state=RunState.WAITING_FOR_RESOURCES, reason="waits", progress=again, now_s=NOW_S)
    assert both is not None
    assert (both.event, both.text) == ("phase", f"waits; {change.text}")
    run = after(run, change)
    # The driver, which writes the status while workers start, does not know.
    waits = observed(run, state=RunState.WAITING_FOR_RESOURCES, reason="", progress=Progress(phase="W"), now_s=NOW_S)
    run = after(run, waits)
    assert run.progress == again.model_copy(update={"phase": "W"})
    change = observed(run, state=RunState.TRAINING, reason="", progress=again, now_s=NOW_S)
    assert change is not None and change.event == "phase"
    run = after(run, end_of(after(run, change), Cause.NODE_LOST, 11))
    assert run.progress is not None and run.progress.restarts_text.startswith("1 restart")
    run = after(run, admitted(run, number=2, checkpoint="c", start="c", now_s=NOW_S))
    assert run.progress is None


def measured(checkpoint_s: float) -> Progress:
    """Of an attempt that has stored a checkpoint."""
    return Progress(phase="TRAINING", step=2, checkpoint_s=checkpoint_s)


def test_what_has_not_changed_is_no_change() -> None:
    run = training()
    assert observed(run, state=run.state, reason=run.reason, progress=run.progress, now_s=NOW_S) is None
    assert blocked(run, reason=run.reason, event="error", now_s=NOW_S) is None
    assert refused(run, reason="too large", now_s=NOW_S) is None


def test_only_a_new_state_is_an_event() -> None:
    run = training()
    step = observed(run, state=run.state, reason="step 4/9", progress=None, now_s=NOW_S)
    phase = observed(run, state=RunState.EVALUATING, reason="scores", progress=None, now_s=NOW_S)
    assert step is not None and step.event is None
    assert phase is not None and phase.event == "phase"
