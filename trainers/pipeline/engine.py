"""Where preparing, training and scoring run: the interface, and this process; on Ray, see `ray_engine`."""

from collections.abc import Callable
from typing import Protocol, TypeVar

from trainers.config.schema import TrainConfig
from trainers.data.preparation import Runner, run_in_process
from trainers.distributed.root_cause import converting_errors
from trainers.distributed.session import LocalSession
from trainers.errors import ConfigError
from trainers.run_folder.layout import RunFolder
from trainers.storage.full_disk import naming_full_disk
from trainers.training.scoring_worker import score_task
from trainers.training.tasks import ScoreTask, TrainTask
from trainers.training.worker import run_training_worker

Made = TypeVar("Made")


class Engine(Protocol):
    """Where preparing and training run: on Ray (`ray_engine`), or in this process."""

    @property
    def run_shard_tasks(self) -> Runner:
        """Runs the tasks that prepare data."""

    def run_on_main_process(self, make: Callable[[], Made]) -> Made:
        """What `make` returns, made by one process and known to all that call."""

    def check(self, config: TrainConfig, *, trains: bool) -> None:
        """Refuses what can never run here; `trains`: training is to run, and not only preparing or scoring."""

    def train(self, task: TrainTask, folder: RunFolder) -> None:
        """Runs the training workers to their end."""

    def evaluate(self, task: ScoreTask, folder: RunFolder) -> None:
        """Runs scoring workers to their end."""


class LocalEngine:
    """This process, or those that torchrun started: the same core without Ray."""

    run_shard_tasks: Runner = staticmethod(run_in_process)

    def __init__(self, backend: str = "auto"):
        self._backend = backend

    def run_on_main_process(self, make: Callable[[], Made]) -> Made:
        made: Made = LocalSession.of_this_process(self._backend).broadcast(make, "preparing")
        return made

    def check(self, config: TrainConfig, *, trains: bool) -> None:
        """Refuses to train in another number of processes than the config's workers, which batches are made for.

        Raises:
            ConfigError: names both numbers.
        """
        processes, workers = LocalSession.of_this_process(self._backend).world_size, config.scaling.num_workers
        if trains and not config.scaling.min_workers <= processes <= config.scaling.max_workers:
            raise ConfigError(
                f"scaling.num_workers is {workers}, but without Ray there are {processes} processes: start as many "
                f"(torchrun --nproc-per-node {config.scaling.max_workers}), or set scaling.num_workers to {processes}"
            )

    def train(self, task: TrainTask, folder: RunFolder) -> None:
        with converting_errors(), naming_full_disk():
            run_training_worker(task, LocalSession.of_this_process())

    def evaluate(self, task: ScoreTask, folder: RunFolder) -> None:
        with converting_errors(), naming_full_disk():
            score_task(task, LocalSession.of_this_process())
