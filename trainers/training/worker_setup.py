"""Around what a worker runs: the libraries' own output, and on Ray its secrets, its session and its log."""

import logging
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import transformers

from trainers.config.secrets import resolve_secrets
from trainers.distributed.session import RaySession, Session
from trainers.errors import RayscribeError, StoppedError
from trainers.run_folder.worker_logs import WorkerLog, finish_logs


def run_on_worker(run: Callable[[Any, Session], None], loop_config: dict[str, Any]) -> str | None:
    """Runs in a Ray Train worker, and keeps what the worker prints in the run folder.

    Args:
        run: What every rank runs.
        loop_config: `order`, the argument of `run`; `board`, see RaySession; `folder` and `attempt`, whose run folder
            keeps the log.

    Returns:
        The driver's message for a run that was stopped; None for one that ran to its end.
    """
    resolve_secrets(os.environ)
    session = RaySession.of_this_worker(loop_config["board"])
    session.begin()
    folder, attempt = loop_config["folder"], loop_config["attempt"]
    if session.local_rank == 0:
        finish_logs(folder)
    with WorkerLog(folder, attempt, rank=session.rank, group=session.group):
        try:
            run(loop_config["order"], session)
        except StoppedError as stopped:
            return str(stopped)
        except RayscribeError as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            raise
        except Exception:
            traceback.print_exc()
            raise
    return None


def silence_libraries() -> None:
    """Leaves Rayscribe's own lines as the only ones."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    logging.getLogger("accelerate").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
