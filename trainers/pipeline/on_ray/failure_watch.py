"""Decides in Ray Train's controller what happens when workers fail.

The controller is a separate process that imports this module, so the module must not import what training needs.
"""

from typing import Any

from ray import cloudpickle, get_runtime_context
from ray.train import WorkerGroupError
from ray.train.v2._internal.execution.callback import ControllerCallback, ReportCallback, WorkerGroupCallback
from ray.train.v2._internal.execution.controller.state import ReschedulingState, RestartingState

from trainers.config.schema import AnyConfig
from trainers.distributed.coordinator import RESTART, WAITING
from trainers.distributed.ray_connection import LOST_NODE_TIMEOUT_S, lost_nodes, stop_requested
from trainers.distributed.restart_policy import RestartPolicy
from trainers.distributed.root_cause import TooManyFailuresError, is_preemption, is_start_timeout, root_cause_of
from trainers.errors import LostWorkerError, ProgramError, StoppedError

# Maximum length of a reason in the journal.
LONGEST_REASON = 500


class FailureWatch(ControllerCallback, WorkerGroupCallback, ReportCallback):
    """Decides in Ray Train's controller whether workers restart after an error; raises errors that would recur."""

    def __init__(self, coordinator: Any, config: AnyConfig):
        self._coordinator, self._policy, self._failed_starts = coordinator, RestartPolicy.of(config), 0
        self._nodes: set[str] = set()
        self._decided = False
        self._controller = b""

    def after_controller_start(self, train_run_context: Any) -> None:
        """Passes the handle of this controller to the coordinator, so that the driver can end it."""
        self._controller = cloudpickle.dumps(get_runtime_context().current_actor)
        self._coordinator.set_controller.remote(self._controller)

    def after_worker_group_start(self, worker_group: Any) -> None:
        """Records the nodes of a new group's workers."""
        self._nodes = {worker.metadata.node_id for worker in worker_group.get_workers()}
        self._decided = False

    def after_report(self, training_report: Any, metrics: Any) -> None:
        """Notes that the workers have stored another checkpoint."""
        self._policy.note_progress()

    def after_worker_group_poll_status(self, worker_group_status: Any) -> None:
        """Decides once per group, since Ray polls a group that has left a drained node until the node's deadline."""
        if worker_group_status.errors and not self._decided:
            self._decide(worker_group_status.errors)
            self._decided = True

    def after_controller_state_update(self, previous_state: Any, current_state: Any) -> None:
        """Notes that a group has ended, and counts groups that did not start, except by waiting for capacity.

        Raises an error that would recur, or that of an elastic group that failed to start too often. For a fixed number
        of workers, Ray itself counts.
        """
        if not isinstance(current_state, RestartingState | ReschedulingState) or current_state is previous_state:
            return
        # Repeated, since a coordinator that was restarted has lost the handle.
        self._coordinator.set_controller.remote(self._controller)
        self._coordinator.set_phase.remote(WAITING)
        error = current_state.training_failed_error
        cause = root_cause_of(error)
        # A ProgramError may come from Ray's start and be transient.
        if isinstance(current_state, ReschedulingState) and cause.final and type(cause) is not ProgramError:
            raise cause
        if isinstance(current_state, ReschedulingState) and self._policy.is_elastic and not is_start_timeout(error):
            self._failed_starts += 1
            if 0 <= self._policy.max_failures < self._failed_starts:
                raise error

    def _decide(self, worker_exceptions: dict[int, Exception]) -> None:
        combined = WorkerGroupError("", worker_exceptions)
        error = root_cause_of(combined)
        if self._policy.is_elastic and isinstance(error, LostWorkerError):
            error = root_cause_of(combined, lost_nodes=lost_nodes(self._nodes, wait_s=LOST_NODE_TIMEOUT_S))
        if self._policy.is_final(error):
            raise error
        if stop_requested(self._coordinator):
            raise StoppedError(f"stopped without a new checkpoint, since the workers failed meanwhile: {error}")
        line = self._policy.count(error, is_preempted=is_preemption(combined))
        if line is None:
            raise TooManyFailuresError(worker_exceptions)
        self._coordinator.add_event.remote(line)
        self._coordinator.post.remote(RESTART, str(error).partition("\n")[0].rstrip(":")[:LONGEST_REASON])
