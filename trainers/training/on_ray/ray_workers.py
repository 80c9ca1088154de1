"""What Ray Train starts in each worker: process group, secrets, session and log around the work of a rank."""

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ray
from ray.train.torch import TorchConfig
from ray.train.torch.config import _TorchBackend
from ray.train.v2._internal.execution import context

from trainers.config.secrets import resolve_secrets
from trainers.distributed.machine import GLOO_INTERFACE, interface_of
from trainers.distributed.ray_session import RaySession
from trainers.distributed.session import Session
from trainers.errors import StoppedError
from trainers.run_folder.worker_logs import finish_logs, worker_log
from trainers.storage.full_disk import naming_full_disk
from trainers.training.scoring_worker import score_task
from trainers.training.worker import run_training_worker

# Ray Train shares the GPUs of a node's workers by the first, and counts devices by it; where both are set, HIP reads
# the second, in which Ray has left each worker its own GPU alone (Ray 2.60, train/v2/_internal/callbacks).
VISIBLE, VISIBLE_TO_HIP = "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"


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


@dataclass
class NodeAddressTorchConfig(TorchConfig):
    """Ray's TorchConfig, whose workers talk gloo over the network of their Ray.

    Attributes:
        check: Called on each worker first: a node that cannot train says so before NCCL fails there.
    """

    check: Callable[[], None] | None = None

    @property
    def backend_cls(self) -> type["_NodeAddressBackend"]:
        return _NodeAddressBackend


class _NodeAddressBackend(_TorchBackend):
    def on_start(self, worker_group: Any, backend_config: Any) -> None:
        worker_group.execute(share_devices)
        if backend_config.check is not None:
            worker_group.execute(run_check, backend_config.check)
        worker_group.execute(choose_interface)
        super().on_start(worker_group, backend_config)


def share_devices() -> None:
    """Has a worker on AMD's GPUs see those of all workers of its node, as one on NVIDIA's does."""
    if VISIBLE in os.environ and VISIBLE_TO_HIP in os.environ:
        os.environ[VISIBLE_TO_HIP] = os.environ[VISIBLE]


def run_check(check: Callable[[], None]) -> None:
    """Calls it: Ray sends functions with a name only."""
    check()


def choose_interface() -> None:
    """Has gloo use the interface with the node's address, unless the user has chosen one."""
    name = interface_of(ray.util.get_node_ip_address())
    if name is not None:
        os.environ.setdefault(GLOO_INTERFACE, name)
