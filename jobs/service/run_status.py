"""Determines the state of an active attempt from Ray's job, pending resources and the attempt's status file. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence

from jobs.clusters.cluster import PENDING, JobInfo
from jobs.model import Progress, Run, RunState
from trainers.config.wording import both_contexts, counted, format_duration, format_time

# Phases in an attempt's status file, see trainers.run_folder.attempt_status.
PHASES = {
    "PREPARING_DATA": RunState.PREPARING_DATA,
    "WAITING_FOR_RESOURCES": RunState.WAITING_FOR_RESOURCES,
    "TRAINING": RunState.TRAINING,
    "EVALUATING": RunState.EVALUATING,
}
# The last phase, before Ray has detected the end of the job.
ENDED = "ENDED"
# An active attempt writes its status every few seconds; storage may be slow.
STALE_S = 120.0


def status_of(
    job: JobInfo,
    progress: Progress | None,
    pending: Sequence[Mapping[str, float]],
    *,
    run: Run,
    submitted_s: float,
    unread: bool,
    now_s: float,
    setup_failure: str = "",
) -> tuple[RunState, str]:
    """Returns the state of an attempt that has not ended, and its reason.

    `unread` is True if the run folder cannot be read now, so that `progress` is from an earlier read.
    """
    state, reason = _state_of(job, progress, pending, run.state)
    if setup_failure and state == RunState.SETTING_UP:
        reason += f", again after: {setup_failure}"
    stale_s = now_s - (progress.at_s if progress is not None else submitted_s)
    if unread and progress is not None and job.status != PENDING:
        reason += f" · as of {format_time(progress.at_s)}; since then the service cannot read {run.run_folder}"
    elif stale_s > STALE_S and job.status != PENDING and not pending:
        silent = (
            f"it has written nothing to {run.run_folder} yet, or the service cannot read that folder: read its logs"
        )
        reason += f" · {silent if progress is None else f'no update for {format_duration(stale_s)}'}"
    if run.stop_requested_s is not None:
        trains = progress is not None and progress.step
        saved = "it saves a last checkpoint" if trains else "it has trained no step yet"
        if run.config.get("trainer") == "script":
            saved = "its program is asked to save and end"
        return state, f"stopping, {'its entrypoint has not started' if job.status == PENDING else saved} · {reason}"
    return state, reason


def _state_of(
    job: JobInfo, progress: Progress | None, pending: Sequence[Mapping[str, float]], before: RunState
) -> tuple[RunState, str]:
    if job.status == PENDING:
        return RunState.SETTING_UP, "Ray sets up the runtime environment"
    if pending:
        listed = (", ".join(f"{value:g} {name}" for name, value in sorted(bundle.items())) for bundle in pending)
        bundles = " and ".join(f"{count} × ({bundle})" for bundle, count in Counter(listed).items())
        return RunState.WAITING_FOR_RESOURCES, f"waits for {bundles}, which are not free on the cluster"
    if progress is not None and progress.phase == ENDED:
        return before, f"ends · {describe(progress)}"
    if progress is None or progress.phase not in PHASES:
        return RunState.SETTING_UP, "the entrypoint has started"
    return PHASES[progress.phase], describe(progress)


def describe(progress: Progress) -> str:
    """Formats the known parts of the progress: `step 37/200 · 3 workers · loss 1.2345 · WER 12.30% · ETA 2 min`."""
    parts = []
    if progress.step is not None:
        # A program may not report its number of steps.
        parts.append(f"step {progress.step}/{progress.max_steps}" if progress.max_steps else f"step {progress.step}")
    if progress.workers is not None:
        parts.append(counted(progress.workers, "worker"))
    if progress.loss is not None:
        parts.append(f"loss {progress.loss:.4f}")
    if progress.wer is not None:
        parts.append(f"WER {both_contexts(progress.wer, progress.full_context_wer)}")
    if progress.eta_s is not None:
        parts.append(f"ETA {format_duration(progress.eta_s)}")
    if progress.detail:
        parts.append(progress.detail)
    return " · ".join(parts) or progress.phase.lower().replace("_", " ")
