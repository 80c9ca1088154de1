"""TrainConfig → Ray's ScalingConfig, RunConfig, CheckpointConfig and FailureConfig. Pure."""

from typing import Any

from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig

from trainers.config.schema import TrainConfig
from trainers.distributed.logged_barrier import COLLECTIVE_TIMEOUT
from trainers.pipeline.on_ray.worker_checks import WorkerCheck
from trainers.training.on_ray.process_group import NodeAddressTorchConfig

NEVER_S = 1e9


def scaling_config(config: TrainConfig) -> ScalingConfig:
    """Workers and what each reserves."""
    part = config.scaling
    # Type checkers see the class of Ray Train's first version, which has fewer fields.
    count: Any = part.num_workers
    elastic: dict[str, Any] = {}
    if part.is_elastic:
        count = (part.min_workers, part.max_workers)
        # Ray would end the workers for a new size without a checkpoint; see `resize_policy` instead.
        elastic = {"elastic_resize_monitor_interval_s": NEVER_S}
    return ScalingConfig(
        num_workers=count,
        use_gpu=part.use_gpu,
        resources_per_worker=dict(part.worker_resources),
        placement_strategy=part.placement_strategy,
        **elastic,
    )


def torch_config(config: TrainConfig, check: WorkerCheck | None = None) -> TorchConfig:
    """The process group of the workers, and what each checks before; without a backend, Ray takes nccl on GPUs."""
    backend = config.scaling.backend
    return NodeAddressTorchConfig(
        backend=None if backend == "auto" else backend,
        timeout_s=int(COLLECTIVE_TIMEOUT.total_seconds()),
        check=check,
    )


def checkpoint_config(config: TrainConfig) -> CheckpointConfig:
    """Which checkpoints Ray keeps pointers to: those that the run's journal keeps."""
    part = config.checkpoint
    return CheckpointConfig(
        num_to_keep=part.num_to_keep,
        checkpoint_score_attribute=part.score_attribute,
        checkpoint_score_order=part.checkpoint_score_order,
    )


def failure_config(config: TrainConfig) -> FailureConfig:
    """How often Ray starts a worker group again within an attempt: as often as `failure_watch.FailureWatch` lets it.

    Errors of Ray's controller are waits for room that were too long, see `ray_connection.start_timeout_s`, and workers
    that do not start. An elastic group may be planned with a node that is gone by then, which is a wait like others; so
    Ray sets it no limit, and the watch limits the rest.
    """
    limit = -1 if config.scaling.is_elastic else config.run.max_failures
    # Type checkers see the class of Ray Train's first version, which has fewer fields.
    return FailureConfig(max_failures=-1, controller_failure_limit=limit)  # type: ignore[call-arg]


def run_config(config: TrainConfig, *, name: str, storage_path: str, filesystem: Any = None) -> RunConfig:
    """Where Ray keeps its own folder of this attempt, and the two configs above.

    Args:
        config: The config.
        name: Of the Ray run; Ray would silently continue a run of the same name, so each attempt has its own.
        storage_path: Folder in which Ray makes a folder of that name, as `filesystem` has it.
        filesystem: pyarrow filesystem of a bucket, None for a folder.
    """
    return RunConfig(
        name=name,
        storage_path=storage_path,
        storage_filesystem=filesystem,
        checkpoint_config=checkpoint_config(config),
        failure_config=failure_config(config),
    )
