"""Transcribes on all nodes with Ray Data: each process loads a model, and gets blocks."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
import ray
import ray.data
from ray.data import ActorPoolStrategy
from ray.exceptions import RayError

from trainers.config.parts.scaling_part import ScalingPart
from trainers.distributed.ray_connection import largest_cluster
from trainers.distributed.root_cause import root_cause_of
from trainers.errors import ResourceError
from trainers.inspection.node_checks import refuse_unread_recordings, refuse_unshared_folders
from trainers.pipeline.transcription.transcriber import TranscribeTask
from trainers.pipeline.transcription.transcript_files import TranscriptionFolder
from trainers.pipeline.transcription.transcription import BlockTranscriber


def transcribe_on_ray(
    blocks: Sequence[pa.Table], task: TranscribeTask, folder: TranscriptionFolder, num_workers: int | None
) -> Iterator[pa.Table]:
    """Yields OUTCOMES of each block; a block whose process or node is lost is given to another.

    Raises:
        DataError: a node cannot read recordings that the driver's node reads.
        ResourceError: the cluster has no capacity for a single process.
        RayscribeError: a process failed.
    """
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
        # As many as fit from the beginning; fewer if a node is lost.
        compute=ActorPoolStrategy(min_size=1, max_size=workers, initial_size=workers),
        num_cpus=each.get("CPU", 1.0),
        num_gpus=each.get("GPU", 0.0),
        resources=others or None,
    )
    try:
        yield from outcomes.iter_batches(batch_size=None, batch_format="pyarrow")
    except RayError as error:
        raise root_cause_of(error, doing="transcribing") from error
