"""Preparing in a pool of processes, and training and scoring in a worker group, of this machine alone."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

import pyarrow as pa

from trainers.config.schema import TrainConfig
from trainers.config.wording import counted
from trainers.data.preparation import ShardTask
from trainers.distributed.console import print_line, show
from trainers.distributed.console.events import Stage
from trainers.distributed.machine import cpus_of_this_machine
from trainers.distributed.restart_policy import RestartPolicy
from trainers.distributed.signals import STOP_SIGNAL
from trainers.errors import StoppedError
from trainers.pipeline.on_machine.process_server import (
    PROCESSES,
    WorkerCrashedError,
    become_part_of_driver,
    starting_processes,
)
from trainers.pipeline.on_machine.worker_group import Work, run_group
from trainers.pipeline.root_cause import converting_errors, root_cause_of
from trainers.run_folder.layout import RunFolder
from trainers.training.scoring_worker import score_task
from trainers.training.tasks import ScoreTask, TrainTask
from trainers.training.worker import run_training_worker

Made = TypeVar("Made")


class MachineEngine:
    """Processes of this machine, see `process_server`, which is to be started before."""

    def run_shard_tasks(self, blocks: list[pa.Table], task: ShardTask) -> Iterator[pa.Table]:
        """Runs preparing tasks, one on each CPU.

        Raises:
            LostWorkerError: a process died.
            RayscribeError: what stopped a task.
        """
        processes = min(cpus_of_this_machine(), len(blocks))
        start: dict[str, Any] = {"initializer": become_part_of_driver, "initargs": (dict(os.environ),)}
        with converting_errors(), ProcessPoolExecutor(processes, mp_context=PROCESSES, **start) as pool:
            try:
                with starting_processes():
                    results = pool.map(task, blocks)
                yield from results
            except (BrokenProcessPool, WorkerCrashedError) as error:
                raise root_cause_of(error, doing="preparing") from error

    def run_on_main_process(self, make: Callable[[], Made]) -> Made:
        return make()

    def check(self, config: TrainConfig, *, trains: bool) -> None:
        """A machine has room for any number of processes; it only gets slower."""

    def train(self, task: TrainTask, folder: RunFolder) -> None:
        """Runs a worker group, and another one where it fails and that may pass.

        Raises:
            RayscribeError: what stopped the workers.
            Interruption: a stop was requested while there was nothing to wait for.
        """
        run_to_end(Work(run_training_worker, task, folder, task.attempt))

    def evaluate(self, task: ScoreTask, folder: RunFolder) -> None:
        """Scores in a worker group; for the rest see `train`."""
        run_to_end(Work(score_task, task, folder, 1))


def run_to_end(work: Work) -> None:
    """Runs a worker group, and another one as often as the restart policy lets it; for the rest see `train`."""
    policy = RestartPolicy.of(work.config)
    with STOP_SIGNAL.deferred():
        while True:
            show(Stage("workers", f"starting {counted(work.config.scaling.max_workers, 'worker')}"))
            ended = run_group(work)
            if ended.error is None and not ended.was_interrupted:
                return
            if STOP_SIGNAL.received and not isinstance(ended.error, StoppedError):
                STOP_SIGNAL.end()
            assert ended.error is not None
            line = None if policy.is_final(ended.error) else policy.count(ended.error)
            if line is None:
                raise ended.error
            print_line(line)
