"""All options of `accelerate launch`. Source: accelerate/commands/launch.py of accelerate 1.15."""

from trainers.scripts.launchers.launch_option import (
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

MIXED_PRECISION = ("no", "fp16", "bf16")
# Options that --use_deepspeed reads, and the variable that each becomes.
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
# Those that are lower-cased on the way.
LOWERED = (
    *("gradient_clipping", "offload_optimizer_device", "offload_param_device"),
    *("zero3_init_flag", "zero3_save_16bit_model"),
)
# Options that --use_fsdp reads, with their defaults as the variable has them. None: no variable.
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
    *(
        option
        for name in _MEGATRON
        for option in refused(_BY_VARIABLE.format(f"MEGATRON_LM_{name.upper()}=…"), [f"--megatron_lm_{name}"])
    ),
    *refused(_BY_VARIABLE.format("ACCELERATE_USE_PARALLELISM_CONFIG=true"), switches=["--use_parallelism_config"]),
    *(
        option
        for name in _PARALLELISM
        for option in refused(
            _BY_VARIABLE.format(f"PARALLELISM_CONFIG_{name.upper()}=…"), [f"--parallelism_config_{name}"]
        )
    ),
    *(
        option
        for name in _FP8
        for option in refused(_BY_VARIABLE.format(f"ACCELERATE_FP8_{name.upper()}=…"), [f"--fp8_{name}"])
    ),
    *refused(
        _BY_VARIABLE.format("ACCELERATE_FP8_USE_AUTOCAST_DURING_EVAL=True"), switches=["--fp8_use_autocast_during_eval"]
    ),
)
