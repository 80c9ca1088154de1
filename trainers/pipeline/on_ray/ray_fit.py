"""Runs a training or a program with Ray Train until it ends. Imports no torch."""

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

from ray.exceptions import RayError
from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig, TrainingFailedError

from trainers.config.parts.scaling_part import ScalingPart
from trainers.config.schema import AnyConfig, ScriptConfig
from trainers.config.wording import counted
from trainers.distributed.console import print_line, show
from trainers.distributed.console.events import Stage
from trainers.distributed.coordinator import STOPPABLE, WAITING, EndRequest
from trainers.distributed.ray_connection import (
    LOST_NODE_TIMEOUT_S,
    POLL_S,
    SILENT_NODE_TIMEOUT_S,
    draining_nodes,
    driver_node_id,
    free_resources,
    kill_controller,
    lasting_resources,
    living_nodes,
    lost_nodes,
    node_resources,
    open_coordinator,
    poll_coordinator,
    request_resource_reports,
)
from trainers.distributed.root_cause import only_connection_errors, root_cause_of
from trainers.distributed.signals import STOP_SIGNAL, STOPPING
from trainers.errors import LostNodeError, StoppedError
from trainers.pipeline.on_ray.failure_watch import FailureWatch
from trainers.pipeline.on_ray.resize_policy import LostCapacity, ResizePolicy, StaleNodes
from trainers.run_folder.attempt_status import Phase, StatusWriter
from trainers.run_folder.layout import ATTEMPTS, RAY, RunFolder
from trainers.run_folder.worker_logs import finish_logs

# Seconds between two polls of the cluster's nodes.
NODE_POLL_S = 1.0
# Timeout for joining threads at the end, in case a head that does not respond blocks them.
SHUTDOWN_TIMEOUT_S = 10.0
NEVER_S = 1e9
# Makes a Ray Train trainer from a coordinator and a run config.
TrainerFactory = Callable[[Any, RunConfig], Any]


def scaling_config(part: ScalingPart) -> ScalingConfig:
    """Returns Ray Train's scaling config: number of workers, their resources, and the nodes that they may use."""
    # Type checkers see the class of Ray Train V1, which has fewer fields.
    count: Any = part.num_workers
    further: dict[str, Any] = {"label_selector": dict(part.label_selector) or None}
    if part.is_elastic:
        count = (part.min_workers, part.max_workers)
        # Never, since Ray would end the workers without a checkpoint; `resize_policy` resizes instead.
        further |= {"elastic_resize_monitor_interval_s": NEVER_S}
    return ScalingConfig(
        num_workers=count,
        use_gpu=part.use_gpu,
        resources_per_worker=dict(part.worker_resources),
        placement_strategy=part.placement_strategy,
        accelerator_type=part.accelerator_type,
        **further,
    )


def run_config(config: AnyConfig, *, name: str, storage_path: str, filesystem: Any = None) -> RunConfig:
    """Returns Ray's run config, whose folder has pointers to the checkpoints in the run's journal.

    Ray restarts a worker group within an attempt as often as `failure_watch.FailureWatch` allows. Its controller fails
    if a wait for capacity is too long, or if workers do not start. An elastic group may wait for a node that was lost
    after planning, so Ray gets no limit for elastic runs, and the watch limits the remaining errors. Ray would silently
    continue a run of the same name, so each attempt has its own name.
    """
    limit = -1 if config.scaling.is_elastic else config.run.max_failures
    # Programs report no checkpoints to Ray.
    checkpoints = CheckpointConfig()
    if not isinstance(config, ScriptConfig):
        part = config.checkpoint
        checkpoints = CheckpointConfig(part.num_to_keep, part.score_attribute, part.checkpoint_score_order)
    return RunConfig(
        name=name,
        storage_path=storage_path,
        storage_filesystem=filesystem,
        checkpoint_config=checkpoints,
        # Type checkers see the class of Ray Train V1, which has fewer fields.
        failure_config=FailureConfig(max_failures=-1, controller_failure_limit=limit),  # type: ignore[call-arg]
    )


def fit_to_end(
    make: TrainerFactory,
    config: AnyConfig,
    folder: RunFolder,
    attempt: int | None = None,
    *,
    managed_by_service: bool = False,
) -> None:
    """Runs workers until they end. If the run was stopped, rank 0 returns the message for it.

    Writes the attempt's status. With `managed_by_service`, the attempt ends if the cluster has lost a node, and a queue
    restarts the run.

    Raises:
        StoppedError: a stop was requested.
        Interruption: a stop was requested while there was no checkpoint to wait for.
    """
    number = attempt or 1
    path, filesystem = folder.storage.sub(f"{ATTEMPTS}/{number}/{RAY}").for_pyarrow()
    ray_run = run_config(config, name=folder.ray_run_name(number), storage_path=path, filesystem=filesystem)
    with open_coordinator() as coordinator, StatusWriter(folder, attempt) as status, STOP_SIGNAL.deferred():
        watch: Any = FailureWatch(coordinator, config)
        ray_run.callbacks = [watch]
        fit = RayFit(make(coordinator, ray_run), coordinator, status, config, requeued=managed_by_service)
        nodes = living_nodes()
        try:
            stopped = fit.wait().return_value
        except LostNodeError:
            finish_logs(folder)
            raise
        except (TrainingFailedError, RayError) as error:
            wait_s = SILENT_NODE_TIMEOUT_S if only_connection_errors(error) else LOST_NODE_TIMEOUT_S
            # Stores the last output of workers that died on this node.
            finish_logs(folder)
            raise root_cause_of(error, lost_nodes=lost_nodes(set(fit.nodes) or nodes, wait_s=wait_s)) from error
        if stopped is not None:
            raise StoppedError(stopped)


class RayFit:
    """Runs `fit` of a Ray Train trainer in a thread, so that this thread can print lines and handle signals."""

    def __init__(
        self,
        trainer: Any,
        coordinator: Any,
        status: StatusWriter,
        config: AnyConfig,
        *,
        requeued: bool = False,
    ):
        self._trainer, self._coordinator, self._status = trainer, coordinator, status
        each = ", ".join(f"{value:g} {name}" for name, value in config.scaling.worker_resources.items())
        self._need = f"{counted(config.scaling.num_workers, 'worker')} × ({each})"
        self._result: Any = None
        self._error: BaseException | None = None
        self._phase = ""
        self._group: str | None = None
        self.nodes: tuple[str, ...] = ()
        # The group that is requested to leave, and the reason.
        self._leaves: tuple[str | None, str] | None = None
        self._selects = config.scaling.selects
        self._resize_policy = ResizePolicy(config.scaling, driver_node_id())
        # An elastic run waits, since it may continue with fewer workers than the queue would wait for.
        self._lost_capacity = LostCapacity(config.scaling) if requeued and not config.scaling.is_elastic else None
        self._stale_nodes = StaleNodes(config.scaling)
        self._is_capacity_lost = False
        self._ended = threading.Event()

    def wait(self) -> Any:
        """Prints the workers' lines, and passes on a stop request, until the workers end.

        Raises:
            TrainingFailedError: the workers failed.
            RayError: Ray Train's controller failed.
            LostNodeError: the cluster has no more capacity for the workers, and a queue will restart the run.
            Interruption: a stop was requested while there was no checkpoint to wait for.
        """
        fit = threading.Thread(target=self._fit, name="fit", daemon=True)
        nodes = threading.Thread(target=self._watch_nodes, name="nodes", daemon=True)
        fit.start()
        nodes.start()
        self._enter(WAITING)
        try:
            self._follow(fit)
        finally:
            # A thread that is in a call to Ray while Ray shuts down would crash the process.
            self._ended.set()
            if not fit.is_alive() or kill_controller(self._coordinator):
                fit.join(SHUTDOWN_TIMEOUT_S)
            nodes.join(SHUTDOWN_TIMEOUT_S)
        if self._error is not None:
            raise self._error
        return self._result

    def _follow(self, fit: threading.Thread) -> None:
        is_stopping = False
        while fit.is_alive():
            fit.join(POLL_S)
            self._read()
            if STOP_SIGNAL.received and fit.is_alive():
                if self._phase != STOPPABLE:
                    STOP_SIGNAL.end()
                if not is_stopping:
                    show(STOPPING)
                is_stopping = True
            if self._is_capacity_lost and self.nodes and self._phase == WAITING and fit.is_alive():
                raise LostNodeError(f"training: a node was lost, and the cluster can no longer hold {self._need}")

    def _fit(self) -> None:
        try:
            self._result = self._trainer.fit()
        except BaseException as error:
            self._error = error

    def _watch_nodes(self) -> None:
        """Requests the workers to regroup if necessary. Runs in a thread, since a head that restarts may block it."""
        while not self._ended.wait(NODE_POLL_S):
            # Only a group that trains can store a checkpoint, but nodes may be lost at any time.
            group, nodes = self._group, self.nodes if self._phase == STOPPABLE else ()
            reason, is_capacity_lost = None, False
            with contextlib.suppress(RayError, RuntimeError, OSError):
                draining, every, now_s = draining_nodes(), node_resources(self._selects), time.monotonic()
                free = {node: left for node, left in free_resources().items() if node in every}
                request_resource_reports(
                    self._stale_nodes.nodes_to_query(now_s, every, free, waits=self._phase == WAITING)
                )
                reason = self._resize_policy.regroup_reason(nodes, free, draining, now_s)
                if self._lost_capacity is not None:
                    is_capacity_lost = self._lost_capacity.is_gone(lasting_resources(every, draining), now_s)
            self._is_capacity_lost = is_capacity_lost
            if reason is not None:
                print_line(f"{reason}: saving a checkpoint and restarting the workers")
                self._leaves = (group, reason)

    def _read(self) -> None:
        update = poll_coordinator(self._coordinator)
        if update is None:
            return
        if update.group is not None:
            self._group, self.nodes = update.group, update.nodes
        self._request(update.request)
        for event in update.events:
            show(event)
        if update.phase is not None and update.phase != self._phase:
            self._enter(update.phase)

    def _request(self, known: EndRequest | None) -> None:
        """Repeats requests until the coordinator has them, since a coordinator that restarts loses them."""
        if STOP_SIGNAL.received:
            if known != EndRequest():
                self._coordinator.request_stop.remote()
        elif self._leaves is not None and self._leaves[0] == self._group and known is None:
            group, reason = self._leaves
            self._coordinator.request_regroup.remote(reason, group)

    def _enter(self, phase: str) -> None:
        self._phase = phase
        if phase == WAITING:
            self._status.update(Phase.WAITING_FOR_RESOURCES, detail=self._need)
            show(Stage("workers", f"starting {self._need}"))
        else:
            # From now on the main process writes the status.
            self._status.pause()
