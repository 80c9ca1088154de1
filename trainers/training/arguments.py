"""Converts a TrainConfig to Seq2SeqTrainingArguments, and refuses arguments that the config must not set."""

import difflib
import logging
import os
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import Seq2SeqTrainingArguments
from transformers.integrations.deepspeed import unset_hf_deepspeed_config
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

from trainers.config.flags.task_line import BY_KEY
from trainers.config.optional_packages import missing_access, refuse_missing_packages
from trainers.config.parts.strategy_part import StrategyPart, ds_config_of
from trainers.config.parts.training_part import TrainingPart
from trainers.config.schema import TrainConfig
from trainers.distributed.machine import cpus_of_this_machine
from trainers.errors import ConfigError
from trainers.training.trackers.known_trackers import KNOWN_TRACKERS, reported_to

ARGUMENTS = {field.name for field in fields(Seq2SeqTrainingArguments) if field.init}
# Old names of arguments, about which transformers warns, and their new names.
NEW_NAMES = {
    "gradient_checkpointing": "activation_checkpointing",
    "gradient_checkpointing_kwargs": "activation_checkpointing_kwargs",
}
# Arguments that Rayscribe sets itself.
_OWNED = (
    *(name for name in TrainingPart.model_fields if name in ARGUMENTS | NEW_NAMES.keys()),
    *("output_dir", "resume_from_checkpoint", "seed", "data_seed", "auto_find_batch_size", "train_sampling_strategy"),
    *("eval_strategy", "eval_on_start", "eval_delay", "save_strategy", "logging_strategy", "predict_with_generate"),
    *("save_total_limit", "save_only_model", "save_on_each_node", "restore_callback_states_from_checkpoint"),
    *("load_best_model_at_end", "metric_for_best_model", "greater_is_better", "ignore_data_skip"),
    *("accelerator_config", "dataloader_drop_last", "remove_unused_columns", "average_tokens_across_devices"),
    *("activation_checkpointing", "torch_compile_backend", "torch_compile_mode", "fp16_full_eval", "bf16_full_eval"),
    *("use_cpu", "ddp_find_unused_parameters", "deepspeed", "fsdp", "fsdp_config"),
    *("push_to_hub", "hub_token", "push_to_hub_token"),
)
# What to use instead of each, for messages.
OWNED = {name: f"use {BY_KEY[name].field}" if BY_KEY[name].field else BY_KEY[name].reason for name in _OWNED}
PASSED_ON = (
    "per_device_train_batch_size", "per_device_eval_batch_size", "learning_rate", "warmup_steps", "lr_scheduler_type",
    "weight_decay", "max_grad_norm", "save_steps", "logging_steps", "fp16", "bf16", "gradient_checkpointing",
)  # fmt: skip


def check_training_args(extra: dict[str, Any]) -> None:
    """Raises ConfigError for unknown names and names in OWNED in `training.training_args`, with what to use instead."""
    problems = []
    for name in extra:
        if name in OWNED:
            problems.append(f"training.training_args.{name}: Rayscribe sets this itself; {OWNED[name]}")
        elif name not in ARGUMENTS:
            near = difflib.get_close_matches(name, ARGUMENTS, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            problems.append(f"training.training_args.{name}: no Seq2SeqTrainingArguments has this name{hint}")
    if problems:
        raise ConfigError("\n".join(problems))


# Arguments that no config changes.
FIXED: Mapping[str, Any] = {
    "eval_strategy": "steps",
    "save_strategy": "steps",
    "predict_with_generate": True,
    "remove_unused_columns": False,
    "disable_tqdm": True,
    "average_tokens_across_devices": True,
    # DDP regroups its gradient buckets after the first backward pass unless it looks for unused parameters. A resumed
    # run would then sum in another order than an uninterrupted run, and differ in the last bit.
    "ddp_find_unused_parameters": True,
    "log_level": "error",
    "log_level_replica": "error",
}

# Default number of processes that decode clips for one GPU; enough for whisper-tiny on an H100 (see docs/gpu.md).
# Without a GPU, the model needs the CPUs, so the default is 0.
LOADERS = 4


def training_arguments(
    config: TrainConfig, *, output_dir: Path, accumulation: int, on_gpu: bool
) -> Seq2SeqTrainingArguments:
    """Returns the arguments of one rank; raises ConfigError if transformers refuses a value."""
    part = config.training
    check_training_args(part.training_args)
    chosen = {**FIXED, **_chosen(config), "output_dir": str(output_dir), "gradient_accumulation_steps": accumulation}
    chosen |= {"use_cpu": not on_gpu, "dataloader_pin_memory": on_gpu, **strategy_arguments(config.strategy)}
    enough = min(LOADERS, cpus_of_this_machine()) if on_gpu else 0
    loaders = part.training_args.get("dataloader_num_workers", enough)
    chosen |= {"dataloader_num_workers": loaders, "dataloader_persistent_workers": bool(loaders)}
    # The filter would log other numbers than the losses, and wait for the GPU in every forward pass; see `divergence`.
    unfiltered = {"logging_nan_inf_filter": False}
    try:
        arguments = Seq2SeqTrainingArguments(**_by_new_names({**chosen, **part.training_args, **unfiltered}))
    except (TypeError, ValueError, ImportError) as error:
        raise ConfigError(f"training: transformers refuses the arguments: {error}") from error
    # Creating the arguments has enabled ZeRO-3 in all of transformers, see `sharding.py`.
    unset_hf_deepspeed_config()
    return on_one_device(arguments)


def strategy_arguments(part: StrategyPart) -> dict[str, Any]:
    """Returns a strategy's arguments for the Trainer; empty for DDP, its default with several ranks. Pure."""
    if part.name == "deepspeed":
        return {"deepspeed": ds_config_of(part)}
    if part.name == "fsdp":
        return {"fsdp": True, "fsdp_config": {"version": 2, "state_dict_type": "SHARDED_STATE_DICT"}}
    return {}


def check_arguments(config: TrainConfig) -> None:
    """Builds the arguments as far as a machine without the workers' GPUs can; raises as `training_arguments`."""
    extra = {name: value for name, value in config.training.training_args.items() if name != "tf32"}
    part = config.training.model_copy(update={"fp16": False, "bf16": False, "training_args": extra})
    # Sharding needs the workers' process group.
    plain = config.model_copy(update={"training": part, "strategy": StrategyPart()})
    with tempfile.TemporaryDirectory(prefix="rayscribe-") as folder:
        training_arguments(plain, output_dir=Path(folder), accumulation=1, on_gpu=False)


def check_trackers(config: TrainConfig) -> None:
    """Checks the requirements of each tracker; creates each of transformers' own trackers once, as the Trainer will.

    Raises ConfigError if a package is missing or too old, a variable is not set, or a tracker does not exist.
    """
    refuse_missing_packages(config)
    names = reported_to(config)
    if problems := missing_access(names, os.environ):
        raise ConfigError("\n".join(problems))
    for name in names:
        if name not in INTEGRATION_TO_CALLBACK:
            near = difflib.get_close_matches(name, INTEGRATION_TO_CALLBACK, n=1)
            hint = f"did you mean {near[0]}?" if near else f"one of {', '.join(INTEGRATION_TO_CALLBACK)}"
            raise ConfigError(f"training.report_to: {name} is not a tracker of transformers: {hint}")
        if name in KNOWN_TRACKERS:
            continue
        try:
            INTEGRATION_TO_CALLBACK[name]()
        except (ImportError, RuntimeError, ValueError) as error:
            raise ConfigError(
                f"training.report_to: {name} cannot be used here: {error} (or leave {name} out of training.report_to)"
            ) from error


def on_one_device(arguments: Seq2SeqTrainingArguments) -> Seq2SeqTrainingArguments:
    """Prevents the Trainer from using nn.DataParallel on several visible GPUs, which multiplies the gradients."""
    arguments._n_gpu = min(arguments.n_gpu, 1)
    return arguments


def _by_new_names(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Renames deprecated arguments, if this transformers has the new names; an argument under its new name wins."""
    renamed = {new: arguments[old] for old, new in NEW_NAMES.items() if new in ARGUMENTS and old in arguments}
    return renamed | {name: value for name, value in arguments.items() if NEW_NAMES.get(name) not in renamed}


def _chosen(config: TrainConfig) -> dict[str, Any]:
    part = config.training
    return {
        "seed": config.run.seed,
        "max_steps": part.max_steps if part.max_steps is not None else -1,
        "num_train_epochs": part.num_train_epochs or 1.0,
        "eval_steps": part.scoring_steps,
        **{name: getattr(part, name) for name in PASSED_ON},
        "gradient_checkpointing_kwargs": {"use_reentrant": False} if part.gradient_checkpointing else None,
        # The package `trackers` feeds the other trackers.
        "report_to": [name for name in reported_to(config) if name not in KNOWN_TRACKERS] or "none",
    }


def autocast_dtype(config: TrainConfig) -> torch.dtype | None:
    """Returns the dtype of autocast in scoring and training; None for float32."""
    if config.training.bf16:
        return torch.bfloat16
    return torch.float16 if config.training.fp16 else None


def silence_libraries() -> None:
    """Silences libraries, so that this process prints only Rayscribe's own lines."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    logging.getLogger("accelerate").setLevel(logging.ERROR)
    # If DeepSpeed is installed, accelerate imports it in every training, and DeepSpeed warns if there is no GPU.
    logging.getLogger("DeepSpeed").addFilter(lambda record: not record.getMessage().startswith("Setting accelerator"))
    warnings.filterwarnings("ignore")
