"""The state and reason of an active attempt."""

from typing import Any

import pytest

from jobs.clusters.cluster import JobInfo
from jobs.model import Progress, RunState
from jobs.service.run_status import describe, status_of
from tests.jobs.sample import sample_run

RUNNING = JobInfo(known=True, status="RUNNING")
PENDING = JobInfo(known=True, status="PENDING")
TRAINING = Progress(phase="TRAINING", step=37, max_steps=200, loss=1.23456, wer=12.3, eta_s=130, at_s=1000.0)


def said(
    job: JobInfo,
    progress: Progress | None,
    pending: list[dict[str, float]],
    *,
    stopping: bool,
    now_s: float,
    unread: bool = False,
    setup_failure: str = "",
    **changes: Any,
) -> tuple[RunState, str]:
    """What is said of an attempt that was submitted at 990 s."""
    return status_of(
        job,
        progress,
        pending,
        run=sample_run(
            state=RunState.EVALUATING,
            run_folder="/mnt/runs/sr",
            stop_requested_s=1000.0 if stopping else None,
            **changes,
        ),
        submitted_s=990.0,
        unread=unread,
        now_s=now_s,
        setup_failure=setup_failure,
    )


def test_a_pending_job_is_setting_up_whatever_an_older_attempt_wrote() -> None:
    state, reason = said(PENDING, None, [], stopping=False, now_s=1000.0)
    assert (state, reason) == (RunState.SETTING_UP, "Ray sets up the runtime environment")


def test_a_pending_job_whose_environment_was_tried_in_vain_says_why() -> None:
    _, reason = said(PENDING, None, [], stopping=False, now_s=1000.0, setup_failure="ERROR: No such package")
    assert reason == "Ray sets up the runtime environment, again after: ERROR: No such package"


def test_running_is_not_training() -> None:
    state, reason = said(RUNNING, None, [], stopping=False, now_s=1000.0)
    assert (state, reason) == (RunState.SETTING_UP, "the entrypoint has started")


def test_what_is_waited_for_is_named() -> None:
    bundles = [{"CPU": 4.0, "GPU": 1.0}, {"CPU": 4.0, "GPU": 1.0}, {"CPU": 1.0}]
    state, reason = said(RUNNING, None, bundles, stopping=False, now_s=1000.0)
    assert state == RunState.WAITING_FOR_RESOURCES
    assert reason == "waits for 2 × (4 CPU, 1 GPU) and 1 × (1 CPU), which are not free on the cluster"


def test_a_training_attempt_says_step_loss_score_and_time() -> None:
    state, reason = said(RUNNING, TRAINING, [], stopping=False, now_s=1001.0)
    assert (state, reason) == (RunState.TRAINING, "step 37/200 · loss 1.2346 · WER 12.30% · ETA 2 min 10 s")


@pytest.mark.parametrize("phase", ["PREPARING_DATA", "EVALUATING", "WAITING_FOR_RESOURCES"])
def test_each_phase_is_a_state_with_its_detail(phase: str) -> None:
    progress = Progress(phase=phase, detail="train 3 of 9 clips", at_s=1000.0)
    assert said(RUNNING, progress, [], stopping=False, now_s=1000.0) == (RunState(phase), "train 3 of 9 clips")


def test_a_silent_attempt_is_said_to_be_silent() -> None:
    _, reason = said(RUNNING, TRAINING, [], stopping=False, now_s=1000.0 + 600)
    assert reason.endswith(" · no update for 10 min 00 s")


def test_a_status_that_cannot_be_read_now_is_kept_with_its_time() -> None:
    for now_s in (1010.0, 2000.0):
        state, reason = said(RUNNING, TRAINING, [], stopping=False, now_s=now_s, unread=True)
        assert state == RunState.TRAINING
        assert reason.startswith("step 37/200 · ")
        assert reason.endswith(" · as of 1970-01-01 00:16:40 UTC; since then the service cannot read /mnt/runs/sr")


def test_an_attempt_of_which_nothing_can_be_read_is_said_to_be_so_after_a_while() -> None:
    assert said(RUNNING, None, [], stopping=False, now_s=1000.0)[1] == "the entrypoint has started"
    state, reason = said(RUNNING, None, [], stopping=False, now_s=1000.0 + 600)
    assert state == RunState.SETTING_UP
    assert reason == (
        "the entrypoint has started · it has written nothing to /mnt/runs/sr yet, "
        "or the service cannot read that folder: read its logs"
    )
    assert said(PENDING, None, [], stopping=False, now_s=1000.0 + 600)[1] == "Ray sets up the runtime environment"


def test_a_stop_that_is_asked_for_is_told_in_every_state() -> None:
    _, pending = said(PENDING, None, [], stopping=True, now_s=1000.0)
    assert pending.startswith("stopping, its entrypoint has not started · ")
    _, training = said(RUNNING, TRAINING, [], stopping=True, now_s=1000.0)
    assert training.startswith("stopping, it saves a last checkpoint · step 37/200")
    _, beginning = said(RUNNING, None, [], stopping=True, now_s=1000.0)
    assert beginning == "stopping, it has trained no step yet · the entrypoint has started"
    # Steps of a program are not always known.
    _, program = said(RUNNING, None, [], stopping=True, now_s=1000.0, config={"trainer": "script"})
    assert program.startswith("stopping, its program is asked to save and end · ")


def test_an_attempt_that_has_written_its_end_still_belongs_to_ray() -> None:
    ended = Progress(phase="ENDED", detail="WER 4.2%", at_s=1000.0)
    assert said(RUNNING, ended, [], stopping=False, now_s=1000.0) == (RunState.EVALUATING, "ends · WER 4.2%")


def test_a_phase_without_a_word_is_named() -> None:
    assert describe(Progress(phase="PREPARING_DATA")) == "preparing data"
    elastic = Progress(phase="TRAINING", step=4, max_steps=8, loss=1.5, workers=3)
    assert describe(elastic) == "step 4/8 · 3 workers · loss 1.5000"
    assert describe(Progress(phase="TRAINING", step=4)) == "step 4"
    assert describe(Progress(phase="TRAINING", workers=1, detail="loading")) == "1 worker · loading"
    both = Progress(phase="TRAINING", step=4, max_steps=8, wer=12.3, full_context_wer=13)
    assert describe(both) == "step 4/8 · WER 12.30% short context, 13.00% full context"
