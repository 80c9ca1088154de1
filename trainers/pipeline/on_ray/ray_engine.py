"""Prepares and transcribes with Ray Data, and trains with Ray Train."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import pyarrow as pa
import ray
import ray.data
from ray.data import ActorPoolStrategy
from ray.exceptions import RayError
from ray.train import RunConfig
from ray.train.torch import TorchConfig, TorchTrainer

from trainers.config.parts.scaling_part import ScalingPart
from trainers.config.schema import TrainConfig
from trainers.data.preparation import ShardTask, run_on_ray
from trainers.distributed.ray_connection import check_capacity, largest_cluster
from trainers.distributed.root_cause import root_cause_of
from trainers.distributed.session import COLLECTIVE_TIMEOUT
from trainers.errors import ResourceError
from trainers.inspection.node_checks import WorkerCheck, refuse_unread_recordings, refuse_unshared_folders
from trainers.pipeline.on_ray.ray_fit import fit_to_end, scaling_config
from trainers.pipeline.transcription.transcriber import TranscribeTask
from trainers.pipeline.transcription.transcript_files import TranscriptionFolder
from trainers.pipeline.transcription.transcription import BlockTranscriber
from trainers.run_folder.layout import RunFolder
from trainers.training.ray_workers import NodeAddressTorchConfig, train_loop_per_worker
from trainers.training.tasks import ScoreTask, TrainTask

Made = TypeVar("Made")
# Runs in each worker; returns the message of a run that was stopped.
Loop = Callable[[dict[str, Any]], Any]


def torch_config(config: TrainConfig, check: WorkerCheck | None = None) -> TorchConfig:
    """Returns the config of the workers' process group, with the check of each node. `auto` uses Ray's default."""
    backend = config.scaling.backend
    return NodeAddressTorchConfig(
        backend=None if backend == "auto" else backend,
        timeout_s=int(COLLECTIVE_TIMEOUT.total_seconds()),
        check=check,
    )


class RayEngine:
    """Runs on the cluster that this process has joined, see `ray_connection.connected`."""

    def __init__(self, task_resources: Mapping[str, float] | None = None, *, train_loop: Loop = train_loop_per_worker):
        """Makes each preparing task reserve `task_resources`, such as a part of a `node:<address>`, besides its CPU."""
        self._task_resources = dict(task_resources or {})
        self._train_loop = train_loop

    def run_shard_tasks(self, blocks: list[pa.Table], task: ShardTask) -> Iterator[pa.Table]:
        """Runs preparing tasks with Ray Data; raises DataError if a node cannot read what the driver's node reads."""
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
        config, requeued = task.config, False
        attempt: int | None = None
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


def transcribe_on_ray(
    blocks: Sequence[pa.Table], task: TranscribeTask, folder: TranscriptionFolder, num_workers: int | None
) -> Iterator[pa.Table]:
    """Yields the OUTCOMES of each block; if a process or node is lost, another process transcribes its block."""
    part = task.config.scaling
    held = largest_cluster(part.selects)
    if held.get("GPU") and "use_gpu" not in part.model_fields_set:
        part = ScalingPart(**{**part.model_dump(exclude_unset=True), "use_gpu": True})
    each = part.worker_resources
    config = task.config.model_copy(update={"scaling": part})
    refuse_unshared_folders(config, {})
    refuse_unread_recordings(blocks, task.reader, {})
    room = min(int(held.get(name, 0.0) // amount) for name, amount in each.items() if amount)
    if room < 1:
        wanted = ", ".join(f"{amount:g} {name}" for name, amount in each.items())
        raise ResourceError(f"the cluster has no room for a process with {wanted}: lower scaling.resources_per_worker")
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    workers = min(num_workers or room, room, len(blocks))
    others = {name: amount for name, amount in each.items() if name not in ("CPU", "GPU")}
    outcomes = ray.data.from_arrow(list(blocks)).map_batches(
        BlockTranscriber,
        fn_constructor_args=(replace(task, config=config), folder),
        batch_size=None,
        batch_format="pyarrow",
        zero_copy_batch=True,
        # Starts as many as fit; continues with fewer if a node is lost.
        compute=ActorPoolStrategy(min_size=1, max_size=workers, initial_size=workers),
        num_cpus=each.get("CPU", 1.0),
        num_gpus=each.get("GPU", 0.0),
        resources=others or None,
    )
    try:
        yield from outcomes.iter_batches(batch_size=None, batch_format="pyarrow")
    except RayError as error:
        raise root_cause_of(error, doing="transcribing") from error
