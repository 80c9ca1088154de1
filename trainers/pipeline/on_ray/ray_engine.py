"""Prepares with Ray Data and trains with Ray Train."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import pyarrow as pa
from ray.exceptions import RayError
from ray.train import RunConfig
from ray.train.torch import TorchConfig, TorchTrainer

from trainers.config.schema import TrainConfig
from trainers.data.preparation import ShardTask, run_on_ray
from trainers.distributed.logged_barrier import COLLECTIVE_TIMEOUT
from trainers.distributed.ray_connection import check_capacity
from trainers.distributed.root_cause import root_cause_of
from trainers.inspection.node_checks import WorkerCheck, refuse_unread_recordings, refuse_unshared_folders
from trainers.pipeline.on_ray.ray_fit import fit_to_end, scaling_config
from trainers.run_folder.layout import RunFolder
from trainers.training.on_ray.ray_workers import NodeAddressTorchConfig, train_loop_per_worker
from trainers.training.tasks import ScoreTask, TrainTask

Made = TypeVar("Made")
# Returns the message of a run that was stopped.
Loop = Callable[[dict[str, Any]], Any]


def torch_config(config: TrainConfig, check: WorkerCheck | None = None) -> TorchConfig:
    """Returns the config of the workers' process group, with the check of each node; Ray's default on GPUs is nccl."""
    backend = config.scaling.backend
    return NodeAddressTorchConfig(
        backend=None if backend == "auto" else backend,
        timeout_s=int(COLLECTIVE_TIMEOUT.total_seconds()),
        check=check,
    )


class RayEngine:
    """Runs on the cluster that this process has joined, see `ray_connection.connected`."""

    def __init__(self, task_resources: Mapping[str, float] | None = None, *, train_loop: Loop = train_loop_per_worker):
        """Each preparing task reserves `task_resources` in addition to its CPU, e.g. a part of a `node:<address>`."""
        self._task_resources = dict(task_resources or {})
        self._train_loop = train_loop

    def run_shard_tasks(self, blocks: list[pa.Table], task: ShardTask) -> Iterator[pa.Table]:
        """Runs preparing tasks with Ray Data.

        Raises:
            DataError: a node cannot read recordings that the driver's node reads.
            RayscribeError: a task failed.
        """
        refuse_unread_recordings(blocks, task.reader, self._task_resources)
        try:
            yield from run_on_ray(blocks, task, self._task_resources)
        except RayError as error:
            raise root_cause_of(error, doing="preparing") from error

    def run_on_main_process(self, make: Callable[[], Made]) -> Made:
        return make()

    def check(self, config: TrainConfig, *, trains: bool) -> None:
        """Refuses a worker group that the cluster can never hold, and folders that its nodes do not share."""
        check_capacity(config)
        refuse_unshared_folders(config, self._task_resources)

    def run(self, task: TrainTask | ScoreTask, folder: RunFolder) -> None:
        config, attempt, requeued = task.config, None, False
        if isinstance(task, TrainTask):
            sets, attempt, requeued = [*task.sets.values()], task.attempt, task.managed_by_service
        else:
            sets = [each for each in (task.prepared, task.validation) if each is not None]
        folders = [part.url for each in sets for part in each.parts]

        def make(coordinator: Any, ray_run: RunConfig) -> TorchTrainer:
            loop_config = {"task": task, "coordinator": coordinator, "folder": folder, "attempt": attempt or 1}
            return TorchTrainer(
                self._train_loop,
                train_loop_config=loop_config,
                scaling_config=scaling_config(config.scaling),
                run_config=ray_run,
                torch_config=torch_config(config, WorkerCheck.of(folders, device=config.scaling.device)),
            )

        fit_to_end(make, config, folder, attempt, managed_by_service=requeued)
