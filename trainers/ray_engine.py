"""Preparing with Ray Data and training with Ray Train."""

from collections.abc import Callable
from typing import Any, TypeVar

from ray.train import RunConfig
from ray.train.torch import TorchTrainer
from ray.train.v2.api.exceptions import TrainingFailedError, WorkerGroupError

from trainers.cluster import check_capacity, lines_of_workers
from trainers.config import TrainConfig
from trainers.data.prepare import Runner, run_on_ray
from trainers.errors import RayscribeError
from trainers.ray_configs import run_config, scaling_config
from trainers.run import say
from trainers.run_folder import ATTEMPTS, RunFolder
from trainers.worker import EvaluateOrder, WorkOrder, evaluate_per_worker, train_loop_per_worker

Made = TypeVar("Made")


class RayEngine:
    """The cluster that this process has joined, see `cluster.connected`."""

    runner: Runner = staticmethod(run_on_ray)

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
            )
            try:
                trainer.fit()
            except TrainingFailedError as error:
                raise _cause_of(error) from error


def _cause_of(error: TrainingFailedError) -> RayscribeError:
    """Our own error that a worker raised, or a new one that quotes what it raised."""
    causes = list(error.worker_failures.values()) if isinstance(error, WorkerGroupError) else [error]
    for cause in causes:
        inner = getattr(cause, "cause", None) or getattr(cause, "_base_exc", None) or cause
        if isinstance(inner, RayscribeError):
            return inner
    return RayscribeError(f"training failed: {causes[0] if causes else error}")
