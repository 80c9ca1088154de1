"""TrainConfig → Ray's ScalingConfig, RunConfig, CheckpointConfig and FailureConfig. Pure."""

from typing import Any

from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig

from trainers.config.schema import TrainConfig


def scaling_config(config: TrainConfig) -> ScalingConfig:
    """Workers and what each reserves."""
    part = config.scaling
    return ScalingConfig(
        num_workers=part.num_workers,
        use_gpu=part.use_gpu,
        resources_per_worker=dict(part.worker_resources),
        placement_strategy=part.placement_strategy,
    )


def checkpoint_config(config: TrainConfig) -> CheckpointConfig:
    """Which checkpoints stay."""
    part = config.checkpoint
    return CheckpointConfig(
        num_to_keep=part.num_to_keep,
        checkpoint_score_attribute=part.checkpoint_score_attribute,
        checkpoint_score_order=part.checkpoint_score_order,
    )


def failure_config(config: TrainConfig) -> FailureConfig:
    """How often a failed worker group is started again within an attempt."""
    return FailureConfig(max_failures=config.run.max_failures)


def run_config(config: TrainConfig, *, attempt: int, attempts_path: str, filesystem: Any = None) -> RunConfig:
    """Where Ray keeps its own folder of this attempt, and the two configs above.

    Args:
        config: The config.
        attempt: Number of the attempt; Ray would silently continue a run of the same name, so each has its own.
        attempts_path: Folder of all attempts, as `filesystem` has it.
        filesystem: pyarrow filesystem of a bucket, None for a folder.
    """
    return RunConfig(
        name=str(attempt),
        storage_path=attempts_path,
        storage_filesystem=filesystem,
        checkpoint_config=checkpoint_config(config),
        failure_config=failure_config(config),
    )
