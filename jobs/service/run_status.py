"""True status: what a live attempt is doing, from Ray's job, from what it waits for, and from what it wrote. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence

from jobs.clusters.cluster import PENDING, JobInfo
from jobs.lifecycle import RunState
from jobs.model import Progress
from trainers.config.durations import format_duration

# Phases that an attempt writes into its status file, see trainers.run_folder.attempt_status.
PHASES = {
    "PREPARING_DATA": RunState.PREPARING_DATA,
    "WAITING_FOR_RESOURCES": RunState.WAITING_FOR_RESOURCES,
    "TRAINING": RunState.TRAINING,
    "EVALUATING": RunState.EVALUATING,
}
# What it writes last, while Ray has yet to see its end.
ENDED = "ENDED"
# An attempt writes every few seconds while it lives; storage may be slow.
SILENT_S = 120.0


def status_of(
    job: JobInfo,
    progress: Progress | None,
    pending: Sequence[Mapping[str, float]],
    *,
    before: RunState,
    submitted_s: float,
    run_folder: str,
    stopping: bool,
    now_s: float,
) -> tuple[RunState, str]:
    """State and one line of reason of an attempt that has not ended.

    Args:
        job: What Ray says.
        progress: What the attempt wrote last; None where it has written nothing, or nothing can be read.
        pending: Bundles of resources that the job asked for and does not hold.
        before: What it was doing when last looked at.
        submitted_s: When Ray took it.
        run_folder: Where it writes.
        stopping: Whether a user has asked to stop it.
        now_s: The time.
    """
    state, reason = _undisturbed(job, progress, pending, before)
    quiet_s = now_s - (progress.at_s if progress is not None else submitted_s)
    if quiet_s > SILENT_S and job.status != PENDING and not pending:
        reason += f" · {_silence(progress, quiet_s, run_folder)}"
    if stopping:
        trains = progress is not None and progress.step
        held = "it leaves a last checkpoint" if trains else "it has trained nothing yet"
        return state, f"stopping, {'its entrypoint has not started' if job.status == PENDING else held} · {reason}"
    return state, reason


def _undisturbed(
    job: JobInfo, progress: Progress | None, pending: Sequence[Mapping[str, float]], before: RunState
) -> tuple[RunState, str]:
    if job.status == PENDING:
        return RunState.SETTING_UP, "Ray sets up the runtime environment"
    if pending:
        return RunState.WAITING_FOR_RESOURCES, f"waits for {_bundles(pending)}, which the cluster has not free"
    if progress is not None and progress.phase == ENDED:
        return before, f"ends · {describe(progress)}"
    if progress is None or progress.phase not in PHASES:
        return RunState.SETTING_UP, "the entrypoint has started"
    return PHASES[progress.phase], describe(progress)


def _silence(progress: Progress | None, quiet_s: float, run_folder: str) -> str:
    if progress is not None:
        return f"silent for {format_duration(quiet_s)}"
    return f"it has written nothing to {run_folder} yet, or the service cannot read that folder: read its logs"


def describe(progress: Progress) -> str:
    """`step 37/200 · loss 1.2345 · WER 12.30% · ETA 2 min`, or what else the attempt says of itself."""
    parts = []
    if progress.step is not None:
        parts.append(f"step {progress.step}/{progress.max_steps}")
    if progress.loss is not None:
        parts.append(f"loss {progress.loss:.4f}")
    if progress.wer is not None:
        parts.append(f"WER {progress.wer:.2f}%")
    if progress.eta_s is not None:
        parts.append(f"ETA {format_duration(progress.eta_s)}")
    if progress.detail:
        parts.append(progress.detail)
    return " · ".join(parts) or progress.phase.lower().replace("_", " ")


def _bundles(pending: Sequence[Mapping[str, float]]) -> str:
    counted = Counter(", ".join(f"{value:g} {name}" for name, value in sorted(bundle.items())) for bundle in pending)
    return " and ".join(f"{count} × ({bundle})" for bundle, count in counted.items())
