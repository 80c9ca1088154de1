"""What an attempt left in its run folder, read by the service. A folder that cannot be read says nothing, not lies."""

import logging
import math
from typing import Any

from jobs.model import Progress, Run
from trainers.checkpoints import list_checkpoints
from trainers.errors import RayscribeError
from trainers.live import read_status
from trainers.run_folder import RunFolder
from trainers.storage import open_storage

log = logging.getLogger(__name__)


def folder_of(run: Run) -> RunFolder:
    """The run folder, as the run's config says it is reached."""
    return RunFolder(open_storage(run.run_folder, s3_endpoint_url=run.config["run"]["s3_endpoint_url"]))


def read_progress(run: Run, attempt: int) -> Progress | None:
    """What an attempt wrote last; None where it wrote nothing, or the folder cannot be read from here."""
    try:
        raw: dict[str, Any] | None = read_status(folder_of(run), attempt)
        return Progress.model_validate({name: _finite(value) for name, value in raw.items()}) if raw else None
    except (RayscribeError, ValueError) as error:
        log.debug("%s: no progress: %s", run.id, error)
        return None


def _finite(value: Any) -> Any:
    """A loss that is no number is unequal to itself, and has no form in JSON."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def last_checkpoint(run: Run) -> tuple[str, int] | None:
    """Name and step of the newest whole checkpoint; None where there is none, or the folder cannot be read."""
    try:
        found = list_checkpoints(folder_of(run))
    except (RayscribeError, ValueError) as error:
        log.debug("%s: no checkpoints: %s", run.id, error)
        return None
    newest = max(found, key=lambda item: (item.step, item.created), default=None)
    return (newest.name, newest.step) if newest is not None else None


def resume_words(run: Run) -> str:
    """What the next attempt starts from, in words."""
    asked = str(run.config["run"]["resume"])
    found = last_checkpoint(run)
    if found is not None and asked != "never":
        return f"{asked}: continues from {found[0]} (step {found[1]}) of {run.run_folder}"
    if asked.startswith("from:"):
        return f"begins from the checkpoint {asked.removeprefix('from:')}"
    return f"{asked}: no checkpoint is in {run.run_folder}, so it begins from nothing"
