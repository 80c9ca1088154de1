"""What Ray Train starts in each worker: its secrets, its session and its log around the work of a rank."""

import logging
import os
from collections.abc import Callable
from typing import Any

from ray.train.v2._internal.execution import context

from trainers.config.secrets import resolve_secrets
from trainers.distributed.ray_session import RaySession
from trainers.distributed.session import Session
from trainers.errors import StoppedError
from trainers.run_folder.worker_logs import finish_logs, worker_log
from trainers.storage.full_disk import naming_full_disk
from trainers.training.scoring_worker import score_task
from trainers.training.worker import run_training_worker


def train_loop_per_worker(loop_config: dict[str, Any]) -> str | None:
    """Trains; see `_run`, with a TrainTask as `task`."""
    return _run(run_training_worker, loop_config)


def evaluate_per_worker(loop_config: dict[str, Any]) -> None:
    """Scores; see `_run`, with a ScoreTask as `task`."""
    _run(score_task, loop_config)


def _run(run: Callable[[Any, Session], None], loop_config: dict[str, Any]) -> str | None:
    """Runs a rank, and keeps what its process prints in the run folder.

    The config has `task`, argument of `run`; `coordinator`, see RaySession; `folder` and `attempt`, whose run folder
    keeps the log. Gives the driver's message for a run that was stopped; None for one that ran to its end.
    """
    resolve_secrets(os.environ)
    # It prints each report, whose numbers the driver has shown.
    logging.getLogger(context.__file__).setLevel(logging.WARNING)
    folder, attempt = loop_config["folder"], loop_config["attempt"]
    session = RaySession.of_this_worker(loop_config["coordinator"], folder.name, attempt)
    session.begin()
    if session.local_rank == 0:
        finish_logs(folder)
    try:
        with worker_log(folder, attempt, rank=session.rank, group=session.group), naming_full_disk():
            run(loop_config["task"], session)
    except StoppedError as stopped:
        return str(stopped)
    return None
