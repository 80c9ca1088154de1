"""The interface of engines, which run preparing, training and scoring, and the local engine; for Ray, `ray_engine`."""

from collections.abc import Callable
from typing import Protocol, TypeVar

from trainers.config.schema import TrainConfig
from trainers.data.preparation import Runner, run_in_process
from trainers.distributed.root_cause import converting_errors
from trainers.distributed.session import LocalSession
from trainers.errors import ConfigError
from trainers.run_folder.layout import RunFolder
from trainers.storage.full_disk import naming_full_disk
from trainers.training.tasks import ScoreTask, TrainTask
from trainers.training.worker import run_on_rank

Made = TypeVar("Made")


class Engine(Protocol):
    """Interface of engines, which run preparing, training and scoring on Ray (`ray_engine`) or on this machine."""

    @property
    def run_shard_tasks(self) -> Runner:
        """Runs the tasks that prepare data."""

    def run_on_main_process(self, make: Callable[[], Made]) -> Made:
        """Calls `make` in one process, and returns its result in every process that calls this method."""

    def check(self, config: TrainConfig, *, trains: bool) -> None:
        """Refuses a config that can never run here; `trains` is False for preparing or scoring without training."""

    def run(self, task: TrainTask | ScoreTask, folder: RunFolder) -> None:
        """Runs the workers of a training or a scoring until they end; restarts them if a retry may help.

        Raises:
            Interruption: a stop was requested while there was no checkpoint to wait for.
        """


class LocalEngine:
    """Runs in this process, or in those that torchrun started, without Ray."""

    run_shard_tasks: Runner = staticmethod(run_in_process)

    def __init__(self, backend: str = "auto"):
        self._backend = backend

    def run_on_main_process(self, make: Callable[[], Made]) -> Made:
        made: Made = LocalSession.of_this_process(self._backend).broadcast(make, "preparing")
        return made

    def check(self, config: TrainConfig, *, trains: bool) -> None:
        """Refuses to train in a number of processes other than the config's workers, for which batches are planned."""
        processes, workers = LocalSession.of_this_process(self._backend).world_size, config.scaling.num_workers
        if trains and not config.scaling.min_workers <= processes <= config.scaling.max_workers:
            raise ConfigError(
                f"scaling.num_workers is {workers}, but without Ray there are {processes} processes: start as many "
                f"(torchrun --nproc-per-node {config.scaling.max_workers}), or set scaling.num_workers to {processes}"
            )

    def run(self, task: TrainTask | ScoreTask, folder: RunFolder) -> None:
        with converting_errors(), naming_full_disk():
            run_on_rank(task, LocalSession.of_this_process())
