"""Reads the options of accelerate launch, and the variables that it sets. Source: accelerate 1.15.

From its commands/launch.py and utils/launch.py. Its config file, ~/.cache/huggingface/accelerate/default_config.yaml,
is not read: a line means the same everywhere.
"""

from collections.abc import Iterable
from itertools import chain

from trainers.scripts.launchers.launch_line import Device, Reading, Workers
from trainers.scripts.launchers.launch_option import (
    DEVICES,
    LOGS,
    NODES,
    ONE_LINE,
    RENDEZVOUS,
    SUPERVISED,
    Option,
    not_negative,
    noted,
    ours,
    positive,
    refused,
    switch,
    variable,
)
from trainers.scripts.launchers.launcher import Given, Launcher, Surroundings, dash_or_underscore, kind_of

MIXED_PRECISION = ("no", "fp16", "bf16")
# Options that --use_deepspeed reads, and the variable of each.
DEEPSPEED = {
    "zero_stage": "ACCELERATE_DEEPSPEED_ZERO_STAGE",
    "gradient_accumulation_steps": "ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
    "gradient_clipping": "ACCELERATE_GRADIENT_CLIPPING",
    "offload_optimizer_device": "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE",
    "offload_param_device": "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE",
    "zero3_init_flag": "ACCELERATE_DEEPSPEED_ZERO3_INIT",
    "zero3_save_16bit_model": "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL",
    "deepspeed_config_file": "ACCELERATE_DEEPSPEED_CONFIG_FILE",
    "deepspeed_moe_layer_cls_names": "ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES",
}
# Options whose values are lower-cased.
LOWERED = (
    *("gradient_clipping", "offload_optimizer_device", "offload_param_device"),
    *("zero3_init_flag", "zero3_save_16bit_model"),
)
# Options that --use_fsdp reads, with the defaults of their variables. None: no variable.
FSDP: dict[str, str | None] = {
    "fsdp_version": "1",
    "fsdp_sharding_strategy": "FULL_SHARD",
    "fsdp_reshard_after_forward": "true",
    "fsdp_offload_params": "false",
    "fsdp_min_num_params": "100000000",
    "fsdp_auto_wrap_policy": None,
    "fsdp_transformer_layer_cls_to_wrap": None,
    "fsdp_backward_prefetch": None,
    "fsdp_state_dict_type": None,
    "fsdp_forward_prefetch": "false",
    "fsdp_use_orig_params": "true",
    "fsdp_cpu_ram_efficient_loading": "true",
    "fsdp_sync_module_states": "true",
    "fsdp_activation_checkpointing": "false",
    "fsdp_activation_checkpointing_offload": "false",
}
DYNAMO = ("dynamo_use_fullgraph", "dynamo_use_dynamic", "dynamo_use_regional_compilation")
_MEGATRON = (
    *("tp_degree", "use_custom_fsdp", "no_load_optim", "eod_mask_loss", "overlap_cpu_optimizer_d2h_h2d"),
    *("no_save_optim", "optimizer_cpu_offload", "use_precision_aware_optimizer", "decoder_last_pipeline_num_layers"),
    *("pp_degree", "num_micro_batches", "sequence_parallelism", "recompute_activations", "use_distributed_optimizer"),
    *("gradient_clipping", "recompute_granularity", "recompute_method", "recompute_num_layers", "attention_backend"),
    *("expert_model_parallel_size", "context_parallel_size", "attention_dropout", "hidden_dropout"),
    *("attention_softmax_in_fp32", "expert_tensor_parallel_size", "calculate_per_token_loss"),
    "use_rotary_position_embeddings",
)
_PARALLELISM = (
    *("dp_replicate_size", "dp_shard_size", "tp_size", "cp_size", "cp_backend", "cp_comm_strategy", "sp_size"),
    *("sp_backend", "sp_seq_length", "sp_seq_length_is_variable", "sp_attn_implementation"),
)
_FP8 = (
    *("backend", "margin", "interval", "format", "amax_history_len", "amax_compute_algo"),
    *("override_linear_precision", "opt_level", "enable_fsdp_float8_all_gather", "pad_inner_dim"),
)
_BY_VARIABLE = "set what it stands for in front of the line, as {0}, and leave it out"
_TPU = "TPUs are not supported: leave it out, and train on GPUs or CPUs"

_KINDS = ("cpu", "multi_gpu", "use_deepspeed", "use_fsdp")
# Options whose values are not lower-cased.
_AS_WRITTEN = ("fsdp_version", "fsdp_sharding_strategy", "fsdp_min_num_params")
_FSDP_NAMES = {"fsdp_version": "FSDP_VERSION", "fsdp_transformer_layer_cls_to_wrap": "FSDP_TRANSFORMER_CLS_TO_WRAP"}


def _as_variables(options: str, variables: str, names: Iterable[str]) -> tuple[Option, ...]:
    """Returns options that are refused, each with the variable to set instead."""
    each = (refused(_BY_VARIABLE.format(f"{variables}_{name.upper()}=…"), [f"--{options}_{name}"]) for name in names)
    return tuple(chain.from_iterable(each))


OPTIONS = (
    ours("--num_processes", read=positive),
    ours("--num_machines", read=positive),
    ours("--max_restarts", read=not_negative),
    ours("--mixed_precision", choices=MIXED_PRECISION),
    ours("--gpu_ids"),
    *(switch(f"--{name}") for name in ("cpu", "multi_gpu", "use_deepspeed", "use_fsdp", "no_python")),
    switch("-m", "--module"),
    switch("--debug"),
    switch("--enable_cpu_affinity"),
    ours("--dynamo_backend"),
    ours("--dynamo_mode"),
    *(switch(f"--{name}") for name in DYNAMO),
    *(ours(f"--{name}") for name in (*DEEPSPEED, *FSDP)),
    variable("OMP_NUM_THREADS", "--num_cpu_threads_per_process"),
    variable("ROLE_NAME", "--role"),
    *noted(RENDEZVOUS, ["--main_process_ip", "--main_process_port", "--rdzv_backend", "--rdzv_conf"]),
    *noted(RENDEZVOUS, switches=["--same_network"]),
    *noted(ONE_LINE, ["--machine_rank"]),
    *noted(LOGS, ["-t --tee", "--log_dir"], ["-q --quiet"]),
    *noted(SUPERVISED, ["--monitor_interval"]),
    *noted(
        NODES,
        [
            *("--mpirun_hostfile", "--deepspeed_hostfile", "--deepspeed_exclusion_filter"),
            *("--deepspeed_inclusion_filter", "--deepspeed_multinode_launcher"),
        ],
    ),
    *(
        option
        for name in ("offload_optimizer_nvme_path", "offload_param_nvme_path")
        for option in noted(
            "accelerate launch reads it and does not pass it on: set "
            f"ACCELERATE_DEEPSPEED_{name.upper()}=… in front of the line",
            [f"--{name}"],
        )
    ),
    *noted("training is on no TPU", switches=["--no_tpu_cluster"]),
    *refused(
        "the file is not read, as it is another machine's: write what it says as options, e.g. --num_processes 8 "
        "--mixed_precision bf16, and --use_deepspeed or --use_fsdp with theirs",
        ["--config_file"],
    ),
    *refused(
        _TPU,
        ["--vm", "--env", "--main_training_function"],
        ["--tpu", "--tpu_cluster", "--tpu_use_sudo", "--downcast_bf16"],
    ),
    *(
        Option(
            (f"--{name}",),
            "refused",
            "SageMaker is not used, and no key belongs into a line: leave it out",
            secret=True,
        )
        for name in ("aws_access_key_id", "aws_secret_access_key")
    ),
    *refused(_BY_VARIABLE.format("ACCELERATE_USE_MEGATRON_LM=true"), switches=["--use_megatron_lm"]),
    *_as_variables("megatron_lm", "MEGATRON_LM", _MEGATRON),
    *refused(_BY_VARIABLE.format("ACCELERATE_USE_PARALLELISM_CONFIG=true"), switches=["--use_parallelism_config"]),
    *_as_variables("parallelism_config", "PARALLELISM_CONFIG", _PARALLELISM),
    *_as_variables("fp8", "ACCELERATE_FP8", _FP8),
    *refused(
        _BY_VARIABLE.format("ACCELERATE_FP8_USE_AUTOCAST_DURING_EVAL=True"), switches=["--fp8_use_autocast_during_eval"]
    ),
)


def _deepspeed_variables(given: Given) -> dict[str, str]:
    values = {name: given[name].lower() if name in LOWERED else given[name] for name in DEEPSPEED if name in given}
    return {
        "ACCELERATE_USE_DEEPSPEED": "true",
        "ACCELERATE_CONFIG_DS_FIELDS": "",
        **{DEEPSPEED[name]: value for name, value in values.items()},
    }


def _fsdp_variables(given: Given) -> dict[str, str]:
    found = {"ACCELERATE_USE_FSDP": "true"}
    for name, default in FSDP.items():
        value = given.get(name, default)
        if value is not None:
            # Options without a default are names in torch or of classes.
            lowered = default is not None and name not in _AS_WRITTEN
            found[_FSDP_NAMES.get(name, name.upper())] = value.lower() if lowered else value
    return found


def _dynamo_variables(given: Given) -> dict[str, str]:
    return {
        "ACCELERATE_DYNAMO_BACKEND": given.get("dynamo_backend", "no").upper(),
        "ACCELERATE_DYNAMO_MODE": given.get("dynamo_mode", "default"),
        **{f"ACCELERATE_{name.upper()}": str(given.get(name, False)) for name in DYNAMO},
    }


def _variables(given: Given) -> dict[str, str]:
    found = {"ACCELERATE_MIXED_PRECISION": given.get("mixed_precision", "no")}
    if given.get("debug"):
        found["ACCELERATE_DEBUG_MODE"] = "true"
    if given.get("enable_cpu_affinity"):
        found["ACCELERATE_CPU_AFFINITY"] = "1"
    if given.get("use_deepspeed"):
        return found | _deepspeed_variables(given)
    found |= _dynamo_variables(given)
    if given.get("use_fsdp"):
        return found | _fsdp_variables(given)
    if given.get("multi_gpu"):
        return found
    found["ACCELERATE_USE_CPU"] = str(given.get("cpu", False))
    if given.get("cpu"):
        found |= {"KMP_AFFINITY": "granularity=fine,compact,1,0", "KMP_BLOCKTIME": "1"}
    return found


def _workers(given: Given, surroundings: Surroundings) -> Workers | None:
    count = given.get("num_processes")
    if count is None and given.get("cpu"):
        count = 1
    if count is None:
        chosen = given.get("gpu_ids", "all")
        count = surroundings.devices if chosen == "all" else len(chosen.split(","))
    if not count:
        return None
    nodes = given.get("num_machines", 1)
    if count % nodes:
        raise ValueError(
            f"--num_processes {count}: they are those of all machines: give a multiple of --num_machines {nodes}"
        )
    return Workers(count, count, count // nodes if nodes > 1 else None)


def read(given: Given, surroundings: Surroundings) -> Reading:
    """Reads the options of accelerate launch."""
    kinds = [name for name in _KINDS if given.get(name)]
    if len(kinds) > 1:
        raise ValueError(f"{', '.join(f'--{name}' for name in kinds)} exclude each other: keep one")
    notes = [
        f"accelerate launch --{name} {given[name]}: it is read with --{switch} alone"
        for switch, names in (("use_deepspeed", DEEPSPEED), ("use_fsdp", FSDP))
        for name in names
        if name in given and switch not in kinds
    ]
    if "gpu_ids" in given:
        notes.append(f"accelerate launch --gpu_ids {given['gpu_ids']}: {DEVICES}")
    device: Device | None = "cpu" if "cpu" in kinds else "gpu" if "multi_gpu" in kinds else None
    return Reading(
        workers=_workers(given, surroundings),
        device=device,
        variables=_variables(given),
        max_retries=given.get("max_restarts"),
        kind=kind_of(given),
        notes=tuple(notes),
    )


ACCELERATE = Launcher(
    "accelerate launch",
    OPTIONS,
    read,
    commands=("accelerate launch", "accelerate-launch"),
    modules=("accelerate.commands.launch",),
    spellings=dash_or_underscore,
)
