"""Preparing with Ray Data and training with Ray Train."""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pyarrow as pa
from ray.exceptions import RayError
from ray.train import RunConfig
from ray.train.torch import TorchConfig, TorchTrainer
from ray.train.v2.api.exceptions import TrainingFailedError

from trainers.cluster import check_capacity, lines_of_workers
from trainers.config import TrainConfig
from trainers.data.prepare import ShardTask, run_on_ray
from trainers.errors import RayscribeError
from trainers.ray_configs import run_config, scaling_config
from trainers.run import say
from trainers.run_folder import ATTEMPTS, RunFolder
from trainers.scoring_worker import EvaluateOrder, evaluate_per_worker
from trainers.session import LONGEST_WAIT
from trainers.worker import WorkOrder, train_loop_per_worker

Made = TypeVar("Made")

# Where Ray keeps what stands behind an error of its own.
CAUSES = ("cause", "_base_exc", "controller_failure", "__cause__")


class RayEngine:
    """The cluster that this process has joined, see `cluster.connected`."""

    @staticmethod
    def runner(blocks: list[pa.Table], task: ShardTask) -> Iterator[pa.Table]:
        """Runs preparing tasks with Ray Data.

        Raises:
            RayscribeError: what stopped a task.
        """
        try:
            yield from run_on_ray(blocks, task)
        except RayError as error:
            raise _cause_of(error) from error

    def once(self, make: Callable[[], Made]) -> Made:
        """Made here: the driver is one process."""
        return make()

    def check(self, config: TrainConfig) -> None:
        """Refuses a gang that the cluster can never hold."""
        check_capacity(config)

    def train(self, order: WorkOrder, folder: RunFolder) -> None:
        """Runs a TorchTrainer to its end.

        Raises:
            RayscribeError: what stopped the workers.
        """
        self._run(train_loop_per_worker, order, order.attempt, folder)

    def evaluate(self, order: EvaluateOrder, folder: RunFolder) -> None:
        """Runs scoring workers to their end.

        Raises:
            RayscribeError: what stopped the workers.
        """
        self._run(evaluate_per_worker, order, 1, folder)

    def _run(self, loop: Callable[[dict[str, Any]], None], order: Any, attempt: int, folder: RunFolder) -> None:
        path, filesystem = folder.storage.sub(ATTEMPTS).for_pyarrow()
        ray_run: RunConfig = run_config(order.config, attempt=attempt, attempts_path=path, filesystem=filesystem)
        with lines_of_workers(say) as lines:
            trainer = TorchTrainer(
                loop,
                train_loop_config={"order": order, "lines": lines},
                scaling_config=scaling_config(order.config),
                run_config=ray_run,
                torch_config=TorchConfig(timeout_s=int(LONGEST_WAIT.total_seconds())),
            )
            try:
                trainer.fit()
            except TrainingFailedError as error:
                raise _cause_of(error) from error


def _cause_of(error: BaseException) -> RayscribeError:
    """Our own error somewhere behind what Ray raised, or a new one that quotes it."""
    waiting, seen = [error], set()
    while waiting:
        cause = waiting.pop(0)
        if isinstance(cause, RayscribeError):
            return cause
        if id(cause) in seen:
            continue
        seen.add(id(cause))
        behind = [getattr(cause, name, None) for name in CAUSES]
        behind += list(getattr(cause, "worker_failures", {}).values())
        waiting += [item for item in behind if isinstance(item, BaseException)]
    return RayscribeError(f"training failed: {error}")
