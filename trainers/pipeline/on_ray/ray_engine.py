"""Prepares with Ray Data and trains with Ray Train."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import pyarrow as pa
from ray.exceptions import RayError
from ray.train import RunConfig
from ray.train.torch import TorchConfig, TorchTrainer

from trainers.config.schema import TrainConfig
from trainers.data.preparation import ShardTask, run_on_ray
from trainers.data.prepared_set import PreparedSet
from trainers.distributed.logged_barrier import COLLECTIVE_TIMEOUT
from trainers.distributed.ray_connection import check_capacity
from trainers.distributed.root_cause import root_cause_of
from trainers.inspection.node_checks import WorkerCheck, refuse_unread_recordings, refuse_unshared_folders
from trainers.pipeline.on_ray.ray_fit import fit_to_end, scaling_config
from trainers.run_folder.layout import RunFolder
from trainers.training.on_ray.ray_workers import NodeAddressTorchConfig, evaluate_per_worker, train_loop_per_worker
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

    def train(self, task: TrainTask, folder: RunFolder) -> None:
        """Runs a TorchTrainer until it ends.

        Raises:
            RayscribeError: the error that stopped the workers.
            Interruption: a stop was requested while there was no checkpoint to wait for.
        """
        self._run(self._train_loop, task, folder, task.sets.values(), task.attempt)

    def evaluate(self, task: ScoreTask, folder: RunFolder) -> None:
        """Runs scoring workers until they end.

        Raises:
            RayscribeError: the error that stopped the workers.
            Interruption: a stop was requested.
        """
        sets = [each for each in (task.prepared, task.validation) if each is not None]
        self._run(evaluate_per_worker, task, folder, sets)

    def _run(
        self, loop: Loop, task: Any, folder: RunFolder, sets: Iterable[PreparedSet], attempt: int | None = None
    ) -> None:
        folders = [part.url for each in sets for part in each.parts]
        config: TrainConfig = task.config

        def make(coordinator: Any, ray_run: RunConfig) -> TorchTrainer:
            return TorchTrainer(
                loop,
                train_loop_config={
                    "task": task,
                    "coordinator": coordinator,
                    "folder": folder,
                    "attempt": attempt or 1,
                },
                scaling_config=scaling_config(config.scaling),
                run_config=ray_run,
                torch_config=torch_config(config, WorkerCheck.of(folders, device=config.scaling.device)),
            )

        requeued = attempt is not None and task.managed_by_service
        fit_to_end(make, config, folder, attempt, managed_by_service=requeued)
