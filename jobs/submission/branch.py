"""A new run that begins from a checkpoint of another. Pure."""

import re
from collections.abc import Callable
from itertools import count
from typing import Any

from jobs.model import Run
from jobs.submission.run_request import RunRequest
from trainers.config.storage_location import is_absolute, unsupported_url
from trainers.errors import ConfigError
from trainers.run_folder.layout import CHECKPOINTS


def branch(run: Run, checkpoint: str, name_exists: Callable[[str], bool]) -> RunRequest:
    """Requests a run like another one that begins from one of its checkpoints.

    It has a name and a folder of its own, so that nothing that the other run made later is overwritten.

    Args:
        run: The run to begin from.
        checkpoint: Name of one of its checkpoints, or the absolute folder or URL of any.
        name_exists: Whether a run has this name.

    Raises:
        ConfigError: the checkpoint is a URL that cannot be opened.
    """
    if problem := unsupported_url(checkpoint):
        raise ConfigError(f"--from {checkpoint}: {problem}")
    source = checkpoint if is_absolute(checkpoint) else f"{run.run_folder}/{CHECKPOINTS}/{checkpoint}"
    stem = re.sub(r"-from-\d+$", "", run.id)
    name = next(name for name in (f"{stem}-from-{number}" for number in count(1)) if not name_exists(name))
    config: dict[str, Any] = {**run.config, "run": {**run.config["run"], "name": name, "resume": f"from:{source}"}}
    config["job"] = {**config["job"], "depends_on": [], "address": run.address}
    return RunRequest(config=config, package=run.package)
