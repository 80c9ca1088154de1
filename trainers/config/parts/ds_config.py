"""Checks a user's DeepSpeed config: keys must be known, and values must not contradict the rest of the recipe. Pure.

DeepSpeed ignores an unknown top-level key, and transformers finds a contradiction only when training starts.
Source of the keys: https://www.deepspeed.ai/docs/config-json/
"""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trainers.config.overrides import value_at
from trainers.config.parts.training_part import TrainingPart


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


AUTO = "auto"
REQUIRED = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping", "zero_optimization")
# Other allowed top-level keys: those that are compared with the recipe, and those that are passed on.
COMPARED = ("bf16", "fp16", "optimizer", "scheduler")
PASSED_ON = _names(
    """
    activation_checkpointing aio comms_logger communication_data_type data_types disable_allgather dump_state
    flops_profiler gradient_predivide_factor log_level memory_breakdown prescale_gradients steps_per_print
    train_batch_size wall_clock_breakdown zero_allow_untested_optimizer zero_force_ds_cpu_optimizer
    """
)
# Keys of DeepSpeed that are not supported, and what to use instead or why.
REFUSED: Mapping[str, str] = {
    "checkpoint": "checkpoints go through the run's journal; use training.save_steps and checkpoint.num_to_keep",
    **dict.fromkeys(("tensorboard", "wandb", "comet", "csv_monitor"), "use training.report_to"),
    **dict.fromkeys(("amp", "torch_autocast"), "use training.bf16 or training.fp16"),
    "elasticity": "use scaling.num_workers",
    "autotuning": "use training.per_device_train_batch_size and strategy",
    "gradient_allreduce_op": "gradients are averaged, so that the loss is that of the global batch",
    **dict.fromkeys(("curriculum_learning", "data_efficiency"), "the batch plan decides the order of utterances"),
    "dataloader_drop_last": "no utterance is dropped",
    **dict.fromkeys(("compression_training", "hybrid_engine", "pipeline", "tensor_parallel"), "it is not supported"),
    "compile": "layers are not compiled under DeepSpeed",
}
ZERO_KEYS = _names(
    """
    stage allgather_bucket_size allgather_partitions compute_grad_norm contiguous_gradients enable_sanity_checks
    ignore_unused_parameters log_trace_cache_warnings memory_efficient_linear offload_optimizer offload_param
    overlap_comm parameter_alignment reduce_bucket_size reduce_scatter round_robin_gradients
    stage3_allgather_sequential stage3_gather_16bit_weights_on_model_save stage3_max_live_parameters
    stage3_max_reuse_distance stage3_module_granularity_threshold stage3_param_persistence_threshold
    stage3_prefetch_bucket_size stage3_use_all_reduce_for_fetch_params sub_group_size use_multi_rank_bucket_allreduce
    zero_hpz_partition_size zero_quantized_gradients zero_quantized_nontrainable_weights zero_quantized_weights
    """
)
OFFLOAD_KEYS: Mapping[str, tuple[str, ...]] = {
    "offload_param": ("device", "nvme_path", "buffer_count", "buffer_size", "max_in_cpu", "pin_memory"),
    "offload_optimizer": _names(
        "device nvme_path buffer_count pin_memory pipeline_read pipeline_write fast_init ratio cpuadam_cores_perc"
    ),
}
OPTIMIZERS = ("AdamW", "Adam")
OPTIMIZER_PARAMS = ("lr", "betas", "eps", "weight_decay", "torch_adam", "adam_w_mode")
# DeepSpeed's schedules that transformers has too; https://huggingface.co/docs/transformers/deepspeed
SCHEDULERS: Mapping[str, str] = {"WarmupLR": "constant_with_warmup", "WarmupDecayLR": "linear"}
SCHEDULER_PARAMS = ("warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "warmup_type", "total_num_steps")
# DeepSpeed's default, for a schedule without a number of steps.
WARMUP_STEPS = 1000
# Values that the Trainer fills in; `auto` elsewhere would be passed to DeepSpeed unchanged.
FILLED = (
    *("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping"),
    *("fp16.enabled", "bf16.enabled"),
    *(f"optimizer.params.{name}" for name in ("lr", "betas", "eps", "weight_decay")),
    *(f"scheduler.params.{name}" for name in SCHEDULER_PARAMS if name != "warmup_type"),
    *("zero_optimization.reduce_bucket_size", "zero_optimization.stage3_prefetch_bucket_size"),
    "zero_optimization.stage3_param_persistence_threshold",
)
# The Trainer's values for AdamW, unless training.training_args has others.
ADAM_BETAS, ADAM_EPSILON = (0.9, 0.999), 1e-8


# The keys of each section, by its path; None if any key is allowed.
_SECTIONS: Mapping[str, Sequence[str] | None] = {
    "": (*REQUIRED, *COMPARED, *PASSED_ON, *REFUSED),
    "zero_optimization": ZERO_KEYS,
    **{f"zero_optimization.{name}": keys for name, keys in OFFLOAD_KEYS.items()},
    **dict.fromkeys(("fp16", "bf16")),
    **dict.fromkeys(("optimizer", "scheduler"), ("type", "params")),
    "optimizer.params": OPTIMIZER_PARAMS,
    "scheduler.params": SCHEDULER_PARAMS,
}
# The types of a section, and what is used without it.
_TYPES = {
    "optimizer": (OPTIMIZERS, "the Trainer's own AdamW"),
    "scheduler": (tuple(SCHEDULERS), "training.lr_scheduler_type and training.warmup_steps"),
}


def ds_problems(config: Mapping[str, Any]) -> list[str]:
    """Returns a line for each problem that does not depend on the rest of the recipe, such as an unknown key."""
    return [f"strategy.ds_config{problem}" for problem in _problems(config)]


def _problems(config: Mapping[str, Any]) -> Iterator[str]:
    yield from (f".{name}: remove it; {REFUSED[name]}" for name in config if name in REFUSED)
    for name in REQUIRED:
        if name not in config:
            yield f".{name}: missing; write it{' as auto' if name in FILLED else ', with its stage'}"
    for path, known in _SECTIONS.items():
        *above, name = path.split(".")
        parent = value_at(config, above) if above else config
        section = config if not path else parent.get(name, {}) if isinstance(parent, Mapping) else {}
        if not isinstance(section, Mapping):
            yield f".{path}: must be a mapping (got {section!r})"
        elif known is not None:
            yield from _unknown(f"{path}." if path else "", section, known)
    for path in _autos({name: value for name, value in config.items() if name not in REFUSED}):
        if path not in FILLED:
            yield f".{path}: auto is not filled in here; write a value, or remove it"
    for name, (types, without) in _TYPES.items():
        kind = value_at(config, (name, "type"))
        if isinstance(config.get(name), Mapping) and kind not in types:
            yield f".{name}.type: must be {' or '.join(types)} (got {kind!r}); or remove {name}, for {without}"
    warmup = value_at(config, ("scheduler", "params", "warmup_type"))
    if warmup not in (None, "linear", AUTO):
        yield f".scheduler.params.warmup_type: must be linear (got {warmup!r}), as the Trainer's warm-up is"
    if isinstance(zero := config.get("zero_optimization"), Mapping):
        yield from _zero_problems(zero)
        own = config.get("zero_force_ds_cpu_optimizer") is False or "optimizer" in config
        if value_at(zero, ("offload_optimizer", "device")) not in (None, "none") and not own:
            yield (
                ": offloads the optimizer, but does not name one: set zero_force_ds_cpu_optimizer to false (the "
                "Trainer's own AdamW), or write optimizer with type AdamW"
            )


def contradictions(config: Mapping[str, Any], training: TrainingPart, num_workers: int) -> list[str]:
    """Returns a line for each value of a valid DeepSpeed config that contradicts the rest of the recipe."""
    schedule = config.get("scheduler", {}).get("type")
    without_warmup = "constant" if schedule == "WarmupLR" and not training.warmup_steps else None
    if schedule is not None and training.lr_scheduler_type not in (SCHEDULERS[schedule], without_warmup):
        return [
            f"strategy.ds_config.scheduler is {schedule}, training.lr_scheduler_type: {SCHEDULERS[schedule]}, but that "
            f"is {training.lr_scheduler_type}: set training.lr_scheduler_type: {SCHEDULERS[schedule]}, or remove "
            "strategy.ds_config.scheduler"
        ]
    problems = []
    for name, value, expected, source in _expectations(config, training, num_workers):
        if value == AUTO or (expected is not None and _equal(value, expected)):
            continue
        says, other = (f"is {expected}", f" or {expected}") if expected is not None else ("decides it", "")
        problems.append(f"strategy.ds_config.{name} is {value}, but {source} {says}: set it to auto{other}")
    return problems


def _expectations(
    config: Mapping[str, Any], training: TrainingPart, workers: int
) -> Iterator[tuple[str, Any, Any, str]]:
    """Yields key, value, the value that it must have (None if not yet known) and the field that determines it."""
    size, passes = training.per_device_train_batch_size, training.gradient_accumulation_steps
    planned = "training.global_batch_size" if training.global_batch_size is not None else None
    product = "training.per_device_train_batch_size × gradient_accumulation_steps × scaling.num_workers"
    batches = {
        "train_micro_batch_size_per_gpu": (size, "training.per_device_train_batch_size"),
        "gradient_accumulation_steps": (None if planned else passes, planned or "training.gradient_accumulation_steps"),
        "train_batch_size": (None if planned else size * passes * workers, planned or product),
        "gradient_clipping": (training.max_grad_norm, "training.max_grad_norm"),
    }
    for name, (expected, home) in batches.items():
        if name in config:
            yield name, config[name], expected, home
    for name in ("fp16", "bf16"):
        enabled = config.get(name, {}).get("enabled", False)
        yield f"{name}.enabled", enabled, getattr(training, name), f"training.{name}"
    if "optimizer" in config:
        extra, params = training.training_args, config["optimizer"].get("params", {})
        betas = [extra.get(f"adam_beta{number}", default) for number, default in enumerate(ADAM_BETAS, start=1)]
        adam = {
            "lr": (training.learning_rate, "training.learning_rate"),
            "betas": (betas, "training.training_args.adam_beta1 and adam_beta2"),
            "eps": (extra.get("adam_epsilon", ADAM_EPSILON), "training.training_args.adam_epsilon"),
            "weight_decay": (training.weight_decay, "training.weight_decay"),
        }
        for name, (expected, home) in adam.items():
            # A missing key would mean DeepSpeed's default, which is not the recipe's value.
            yield f"optimizer.params.{name}", params.get(name), expected, home
    if "scheduler" in config:
        yield from _schedule_expectations(config["scheduler"], training)


def _schedule_expectations(scheduler: Mapping[str, Any], training: TrainingPart) -> Iterator[tuple[str, Any, Any, str]]:
    """Yields the expectations for a schedule, which must be the recipe's, since the Trainer's schedule is used."""
    params, where, rate = scheduler.get("params", {}), "scheduler.params", training.learning_rate
    yield f"{where}.warmup_min_lr", params.get("warmup_min_lr", 0), 0, "the learning rate before the first step"
    yield f"{where}.warmup_max_lr", params.get("warmup_max_lr", rate), rate, "training.learning_rate"
    steps = params.get("warmup_num_steps", WARMUP_STEPS)
    yield f"{where}.warmup_num_steps", steps, training.warmup_steps, "training.warmup_steps"
    if "total_num_steps" in params or scheduler["type"] == "WarmupDecayLR":
        yield f"{where}.total_num_steps", params.get("total_num_steps"), training.max_steps, "training.max_steps"


def _zero_problems(zero: Mapping[str, Any]) -> Iterator[str]:
    where, stage = "zero_optimization", zero.get("stage")
    if stage not in (1, 2, 3):
        yield f".{where}.stage: must be 1, 2 or 3 (got {stage!r}); without ZeRO, set strategy: {{name: ddp}}"
    if stage == 3 and zero.get("stage3_gather_16bit_weights_on_model_save") is not True:
        yield (
            f".{where}.stage3_gather_16bit_weights_on_model_save: set it to true, since each checkpoint has all the "
            "model's weights"
        )
    for name in OFFLOAD_KEYS:
        device, place = value_at(zero, (name, "device")), f"{where}.{name}"
        if device not in (None, "none", "cpu", "nvme"):
            yield f".{place}.device: must be none, cpu or nvme (got {device!r})"
        if device == "nvme" and not zero[name].get("nvme_path"):
            yield f".{place}.nvme_path: missing; give a folder on each node's NVMe disk"
        if stage != 3 and (device == "nvme" or (device == "cpu" and name == "offload_param")):
            yield f".{place}.device: {device} needs {where}.stage 3 (got {stage!r})"


def _unknown(prefix: str, section: Mapping[str, Any], known: Sequence[str]) -> Iterator[str]:
    for name in section:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.5)
            yield f".{prefix}{name}: unknown key{f'; did you mean {prefix}{near[0]}?' if near else ''}"


def _autos(section: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in section.items():
        if value == AUTO:
            yield f"{prefix}{name}"
        elif isinstance(value, Mapping):
            yield from _autos(value, f"{prefix}{name}.")


def _equal(value: Any, expected: Any) -> bool:
    if isinstance(expected, list):
        return isinstance(value, list | tuple) and list(value) == expected
    return type(value) in (bool, int, float) and bool(value == expected)
