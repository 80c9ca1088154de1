"""Finds fields that have no effect because of other fields of their config. Pure.

Conflicts within a part are refused by its validators. Runs that have started with the fields found here may continue.
"""

import json
import shlex
from typing import Any

from trainers.config.schema import TrainConfig
from trainers.errors import ConfigError

# The Trainer's arguments for pushes, which Rayscribe makes itself, and the fields to use instead.
OF_A_PUSH = {
    "hub_model_id": "hub.model_id",
    "hub_private_repo": "hub.private",
    "hub_strategy": "hub.push",
    "hub_always_push": "hub.push",
    "hub_revision": "hub.push",
}
STAGE_3 = ("stage3_prefetch_bucket_size", "stage3_param_persistence_threshold")


def unused_fields(config: TrainConfig) -> dict[str, str]:
    """Returns each field of a config that nothing reads, by its dotted name, with the reason; ignores its value."""
    of_model = {f"model.{name}": why for name, why in config.model.unused().items()}
    return {**of_model, **_of_strategy(config), **_of_training(config)}


def refuse_unused_fields(config: TrainConfig) -> None:
    """Raises ConfigError if the config of a new run sets a field that nothing reads."""
    problems = [
        f"training.training_args.{name} has no effect, since the Trainer pushes nothing: remove it, and set {field}"
        for name, field in OF_A_PUSH.items()
        if name in config.training.training_args
    ]
    for name, why in unused_fields(config).items():
        value, default = value_of(config, name), default_of(config, name)
        if value not in (default, 0.0 if default is None else default):
            # --set reads YAML, which includes JSON.
            setting = shlex.quote(f"{name}={json.dumps(default)}")
            problems.append(f"{name} is {value}, but {why}: remove {name}, or give its default (--set {setting})")
    if problems:
        raise ConfigError("\n".join(problems))


def value_of(config: TrainConfig, name: str) -> Any:
    """Returns the value of a field by its dotted name."""
    part, field = name.split(".")
    return getattr(getattr(config, part), field)


def default_of(config: TrainConfig, name: str) -> Any:
    """Returns the default of a field by its dotted name."""
    part, field = name.split(".")
    return type(getattr(config, part)).model_fields[field].get_default(call_default_factory=True)


def _of_strategy(config: TrainConfig) -> dict[str, str]:
    part = config.strategy
    unused: dict[str, str] = {}
    if part.shards_weights:
        names = [f"model.{name}" for name in config.model.drawn_by_rank]
        unused |= dict.fromkeys(names, "ranks that shard weights (ZeRO-3, FSDP2) must all run the same layers")
    if part.name != "deepspeed" or part.ds_config is not None:
        # The part itself refuses DeepSpeed's fields in this case.
        return unused
    if part.stage == 3:
        unused["strategy.allgather_bucket_size"] = "strategy.zero_stage is 3, which gathers layer by layer"
    else:
        unused |= dict.fromkeys((f"strategy.{name}" for name in STAGE_3), f"strategy.zero_stage is {part.stage}, not 3")
    return unused


def _of_training(config: TrainConfig) -> dict[str, str]:
    part = config.training
    unused: dict[str, str] = {}
    if part.max_batch_duration_s is not None:
        unused["training.per_device_train_batch_size"] = "training.max_batch_duration_s sets the size of a batch"
        unused["training.full_context_fraction"] = (
            "training.max_batch_duration_s limits the padded seconds of a batch, which the full context would exceed"
        )
    if config.model.max_context_s is None:
        unused["training.full_context_eval"] = "model.max_context_s is null: each score is at the full context"
    if part.lr_scheduler_type == "constant":
        unused["training.warmup_steps"] = (
            "training.lr_scheduler_type constant has no warm-up, unlike constant_with_warmup"
        )
    return unused
