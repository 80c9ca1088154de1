"""The session of a Ray Train worker."""

import contextlib
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

import ray
import ray.train
from ray.train import Checkpoint, CheckpointConsistencyMode, CheckpointUploadMode
from ray.util import metrics

from trainers.distributed.console import Event
from trainers.distributed.coordinator import STOPPABLE, WORKING, EndRequest
from trainers.distributed.gauges import Gauge
from trainers.distributed.ray_connection import end_request, restart_reason
from trainers.distributed.session import Session

# Ray exports a gauge that nobody sets again for two of its intervals of 10 s, and then drops it.
REPEAT_S = 5.0


@dataclass(frozen=True)
class RaySession(Session):
    """A worker of a Ray TorchTrainer; its lines go to the coordinator, which the driver polls.

    Its numbers are labeled with run and attempt; `nodes` is Ray's id of each rank's node.
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
        """The session of the calling worker; every worker calls it.

        Ray Train counts local ranks by IP address, which several nodes of one host share; here they count by node.
        """
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
        """Gives the number to Ray, whose agent on this node exports it; this thread sends nothing."""
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
        """Reports to Ray Train, for its dashboard and its Result; the pointer is in its folder already."""
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
        """What earlier worker groups of this attempt have reported, and Ray Train has not deleted."""
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
        """Of the last request, which stays one where the coordinator does not respond or has started again."""
        self.stop_requested()
        return self._requests[-1].regroup_reason if self._requests else None

    def restart_reason(self) -> str | None:
        return restart_reason(self.coordinator)

    def _keep_shown(self) -> None:
        """Keeps what was shown last as long as this process lives, above all when the last progress was."""
        while True:
            time.sleep(REPEAT_S)
            self.republish_gauges()
