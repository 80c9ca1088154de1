"""Preparing with Ray Data and training with Ray Train."""

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import pyarrow as pa
from ray.exceptions import RayError
from ray.train import RunConfig, TrainingFailedError, UserCallback, WorkerGroupError
from ray.train.torch import TorchConfig, TorchTrainer

from trainers.config.schema import TrainConfig
from trainers.data.preparation import ShardTask, run_on_ray
from trainers.distributed.board import STOPPABLE, WAITING
from trainers.distributed.console import print_line
from trainers.distributed.ray_connection import (
    POLL_S,
    check_capacity,
    is_stop_asked,
    living_nodes,
    lost_nodes,
    open_board,
    read_board,
)
from trainers.distributed.session import LONGEST_WAIT
from trainers.distributed.signals import STOP
from trainers.errors import StoppedError
from trainers.pipeline.ray_configs import run_config, scaling_config
from trainers.pipeline.root_cause import error_behind, is_preemption, is_silence
from trainers.run_folder.attempt_status import Phase, StatusWriter
from trainers.run_folder.layout import ATTEMPTS, RAY, RunFolder
from trainers.run_folder.worker_logs import finish_logs
from trainers.training.rank import WorkOrder
from trainers.training.ray_workers import evaluate_per_worker, train_loop_per_worker
from trainers.training.scoring_worker import EvaluateOrder

Made = TypeVar("Made")
# Gives back what a run that was stopped says.
Loop = Callable[[dict[str, Any]], Any]

# The cluster may learn a little later than Ray Train that a worker's node went with it; where a worker fell silent,
# only then.
NODE_GOES_TOO_S, NODE_FALLS_SILENT_S = 5.0, 60.0


class RayEngine:
    """The cluster that this process has joined, see `ray_connection.connected`."""

    def __init__(self, task_resources: Mapping[str, float] | None = None, *, train_loop: Loop = train_loop_per_worker):
        """Joins nothing.

        Args:
            task_resources: What each preparing task reserves beside its CPU, e.g. a part of `node:<address>`, which
                places it there.
            train_loop: What every training worker runs.
        """
        self._task_resources = dict(task_resources or {})
        self._train_loop = train_loop

    def runner(self, blocks: list[pa.Table], task: ShardTask) -> Iterator[pa.Table]:
        """Runs preparing tasks with Ray Data.

        Raises:
            RayscribeError: what stopped a task.
        """
        try:
            yield from run_on_ray(blocks, task, self._task_resources)
        except RayError as error:
            raise error_behind(error, doing="preparing") from error

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
            Interruption: somebody asked to stop while there was nothing to wait for.
        """
        self._run(self._train_loop, order, folder, order.attempt)

    def evaluate(self, order: EvaluateOrder, folder: RunFolder) -> None:
        """Runs scoring workers to their end.

        Raises:
            RayscribeError: what stopped the workers.
            Interruption: somebody asked to stop.
        """
        self._run(evaluate_per_worker, order, folder, None)

    def _run(self, loop: Loop, order: Any, folder: RunFolder, attempt: int | None) -> None:
        number = attempt or 1
        path, filesystem = folder.storage.sub(f"{ATTEMPTS}/{number}/{RAY}").for_pyarrow()
        name = folder.ray_run_name(number)
        ray_run: RunConfig = run_config(order.config, name=name, storage_path=path, filesystem=filesystem)
        with open_board() as board, StatusWriter(folder, attempt) as status, STOP.listening():
            watch: Any = FailureWatch(board, order.config.run.max_failures)
            ray_run.callbacks = [watch]
            trainer = TorchTrainer(
                loop,
                train_loop_config={"order": order, "board": board, "folder": folder, "attempt": number},
                scaling_config=scaling_config(order.config),
                run_config=ray_run,
                torch_config=TorchConfig(timeout_s=int(LONGEST_WAIT.total_seconds())),
            )
            nodes = living_nodes()
            try:
                result = _Fit(trainer, board, status, order.config).attend()
            except (TrainingFailedError, RayError) as error:
                wait_s = NODE_FALLS_SILENT_S if is_silence(error) else NODE_GOES_TOO_S
                # What dead workers of this node printed last.
                finish_logs(folder)
                raise error_behind(error, lost_nodes=lost_nodes(nodes, wait_s=wait_s)) from error
            if result.return_value is not None:
                raise StoppedError(result.return_value)


class _Fit:
    """`TorchTrainer.fit` in a thread, so that this one, which gets the signals, can attend to it."""

    def __init__(self, trainer: TorchTrainer, board: Any, status: StatusWriter, config: TrainConfig):
        self._trainer, self._board, self._status = trainer, board, status
        each = ", ".join(f"{value:g} {name}" for name, value in config.scaling.worker_resources.items())
        self._need = f"{config.scaling.num_workers} workers × ({each})"
        self._result: Any = None
        self._error: BaseException | None = None
        self._workers = ""

    def attend(self) -> Any:
        """Shows what the workers say, and passes a request to stop on to them, until they end.

        Returns:
            Ray Train's Result.

        Raises:
            TrainingFailedError: the workers failed.
            RayError: what controls them failed.
            Interruption: somebody asked to stop while there was nothing to wait for.
        """
        thread = threading.Thread(target=self._fit, name="fit", daemon=True)
        thread.start()
        self._enter(WAITING)
        passed_on = False
        while thread.is_alive():
            thread.join(POLL_S)
            self._read()
            if STOP.asked and not passed_on:
                self._board.ask_stop.remote()
                passed_on = True
            if STOP.asked and self._workers != STOPPABLE and thread.is_alive():
                STOP.end()
        if self._error is not None:
            raise self._error
        return self._result

    def _fit(self) -> None:
        try:
            self._result = self._trainer.fit()
        except BaseException as error:
            self._error = error

    def _read(self) -> None:
        news = read_board(self._board)
        if news is None:
            return
        for line in news.lines:
            print_line(line)
        if news.workers is not None and news.workers != self._workers:
            self._enter(news.workers)

    def _enter(self, workers: str) -> None:
        self._workers = workers
        if workers == WAITING:
            self._status.show(Phase.WAITING_FOR_RESOURCES, detail=self._need)
        else:
            # From now on the leading rank writes.
            self._status.rest()


class FailureWatch(UserCallback):
    """Judges in Ray Train's controller what workers raise: what would fail again is not tried again."""

    def __init__(self, board: Any, most: int):
        """Takes where it is told.

        Args:
            board: Handle of the board.
            most: Failures after which Ray Train gives up.
        """
        self._board, self._most, self._count = board, most, 0

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        """Ends the run at once, by raising, or lets Ray Train start the workers again as often as it may.

        Raises:
            RayscribeError: the same would happen again, or somebody has asked to stop.
        """
        together = WorkerGroupError("", worker_exceptions)
        error = error_behind(together)
        if error.final:
            raise error
        if is_stop_asked(self._board):
            raise StoppedError(f"stopped without a new checkpoint, since the workers failed meanwhile: {error}")
        if not is_preemption(together):
            self._count += 1
        if self._most < 0 or self._count <= self._most:
            count = f"{self._count} of at most {self._most}" if self._most >= 0 else f"{self._count}"
            self._board.put.remote(f"the workers start again from the last checkpoint ({count}): {error}")
            self._board.enter.remote(WAITING)
