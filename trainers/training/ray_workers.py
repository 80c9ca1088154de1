"""Worker functions for Ray Train: process group, secrets, session and log around the work of a rank."""

import contextlib
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

import ray
import ray.train
from ray.train import Checkpoint, CheckpointConsistencyMode, CheckpointUploadMode
from ray.train.torch import TorchConfig
from ray.train.torch.config import _TorchBackend
from ray.train.v2._internal.execution import context
from ray.util import metrics

from trainers.config.secrets import resolve_secrets
from trainers.distributed.console import Event
from trainers.distributed.coordinator import STOPPABLE, WORKING, EndRequest
from trainers.distributed.gauges import Gauge
from trainers.distributed.machine import GLOO_INTERFACE, interface_of
from trainers.distributed.ray_connection import end_request, restart_reason
from trainers.distributed.session import Session
from trainers.errors import StoppedError
from trainers.run_folder.worker_logs import finish_logs, worker_log
from trainers.storage.full_disk import naming_full_disk
from trainers.training.worker import run_on_rank

# Ray Train shares the GPUs of a node's workers by the first variable, and counts devices by it. If both are set, HIP
# reads the second, in which Ray has left each worker only its own GPU (Ray 2.60, train/v2/_internal/callbacks).
VISIBLE, VISIBLE_TO_HIP = "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"
# Ray drops a gauge that is not set again within two of its intervals of 10 s.
REPEAT_S = 5.0


def train_loop_per_worker(loop_config: dict[str, Any]) -> str | None:
    """Trains or scores, see `run_worker`."""
    return run_worker(run_on_rank, loop_config)


def run_worker(run: Callable[[Any, Session], None], loop_config: dict[str, Any]) -> str | None:
    """Runs a rank, and keeps the output of its process in the run folder.

    `loop_config` has `task`, the argument of `run`; `coordinator`, see RaySession; `folder` and `attempt`, for the log.
    Returns the driver's message if the run was stopped; None if it ended by itself.
    """
    resolve_secrets(os.environ)
    # Otherwise Ray Train would log each report, whose numbers the driver has already shown.
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
    """Ray's TorchConfig, with gloo on the network of the Ray nodes.

    Attributes:
        check: Called first on each worker, so that it reports an unsuitable node before NCCL fails there.
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
    """Makes a worker on AMD GPUs see the GPUs of all workers on its node, as on NVIDIA GPUs."""
    if VISIBLE in os.environ and VISIBLE_TO_HIP in os.environ:
        os.environ[VISIBLE_TO_HIP] = os.environ[VISIBLE]


def run_check(check: Callable[[], None]) -> None:
    """Calls a check; necessary since Ray sends only functions with a name."""
    check()


def choose_interface() -> None:
    """Makes gloo use the interface with the node's address, unless the user has chosen one."""
    name = interface_of(ray.util.get_node_ip_address())
    if name is not None:
        os.environ.setdefault(GLOO_INTERFACE, name)


@dataclass(frozen=True)
class RaySession(Session):
    """A worker of a Ray TorchTrainer, whose lines go to the coordinator, which the driver polls.

    Its gauges are labeled with run and attempt; `nodes` has Ray's id of each rank's node.
    """

    coordinator: Any = None
    run: str = ""
    attempt: int = 1
    nodes: tuple[str, ...] = ()
    _requests: list[EndRequest] = field(default_factory=list)
    _gauges: dict[Gauge, metrics.Gauge] = field(default_factory=dict)
    _published: dict[tuple[Gauge, frozenset[tuple[str, str]]], float] = field(default_factory=dict)

    @classmethod
    def of_this_worker(cls, coordinator: Any, run: str, attempt: int) -> "RaySession":
        """Returns the session of the calling worker; every worker calls this."""
        # Not Ray Train's local rank, which counts by IP address, since nodes of one host share the address.
        context = ray.train.get_context()
        rank, node = context.get_world_rank(), ray.get_runtime_context().get_node_id()
        nodes = cls(rank, context.get_world_size(), 0, coordinator).gather(node, "starting the workers")
        local_rank = nodes[:rank].count(node)
        return cls(rank, context.get_world_size(), local_rank, coordinator, run, attempt, tuple(nodes))

    @property
    def node(self) -> str:
        return ray.get_runtime_context().get_node_id()

    def show(self, event: Event) -> None:
        self.coordinator.add_event.remote(event)

    def set_gauge(self, gauge: Gauge, value: float, **labels: str) -> None:
        """Passes the number to Ray, whose agent on this node exports it; this thread sends nothing itself."""
        self._published[gauge, frozenset(labels.items())] = value
        self._set(gauge, value, labels)

    def republish_gauges(self) -> None:
        for gauge, labels in list(self._published):
            self._set(gauge, self._published[gauge, labels], dict(labels))

    def _set(self, gauge: Gauge, value: float, labels: dict[str, str]) -> None:
        if gauge not in self._gauges:
            keys = ("run", "attempt", "rank", *gauge.labels)
            self._gauges[gauge] = metrics.Gauge(gauge.full_name, gauge.meaning, keys)
        own = {"run": self.run, "attempt": str(self.attempt), "rank": str(self.rank)}
        self._gauges[gauge].set(value, {**own, **labels})

    def report(self, metrics: dict[str, Any], pointer: str | None = None) -> None:
        """Reports to Ray Train, for its dashboard and its Result; the pointer is already in Ray's folder."""
        checkpoint = None
        if pointer is not None:
            storage = ray.train.get_context().get_storage()
            checkpoint = Checkpoint(f"{storage.experiment_fs_path}/{pointer}", storage.storage_filesystem)
        ray.train.report(
            metrics,
            checkpoint=checkpoint,
            checkpoint_dir_name=pointer,
            checkpoint_upload_mode=CheckpointUploadMode.NO_UPLOAD,
        )

    def reported_pointers(self) -> set[str] | None:
        """Returns the pointers that this attempt's worker groups have reported and Ray Train has not deleted."""
        kept = ray.train.get_all_reported_checkpoints(consistency_mode=CheckpointConsistencyMode.COMMITTED)
        return {PurePosixPath(item.checkpoint.path).name for item in kept}

    def begin(self) -> None:
        self.record_progress()
        threading.Thread(target=self._keep_shown, name="gauges", daemon=True).start()
        if self.is_main_process:
            self.coordinator.begin.remote(self.nodes, uuid.uuid4().hex)

    @contextlib.contextmanager
    def stoppable(self) -> Iterator[None]:
        if self.is_main_process:
            self.coordinator.set_phase.remote(STOPPABLE)
        yield
        if self.is_main_process:
            self.coordinator.set_phase.remote(WORKING)

    def stop_requested(self) -> bool:
        request = end_request(self.coordinator) if self.is_main_process else None
        if request is not None:
            self._requests.append(request)
        return request is not None

    def regroup_reason(self) -> str | None:
        """Returns the reason of the last request, even if the coordinator does not respond or has restarted."""
        self.stop_requested()
        return self._requests[-1].regroup_reason if self._requests else None

    def restart_reason(self) -> str | None:
        return restart_reason(self.coordinator)

    def _keep_shown(self) -> None:
        """Republishes gauges, such as the time of the last progress, as long as this process lives."""
        while True:
            time.sleep(REPEAT_S)
            self.republish_gauges()
