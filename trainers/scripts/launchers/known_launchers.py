"""The launchers whose lines are understood, as data. To add one, write a `Launcher`, and add it to LAUNCHERS.

Sources: torch 2.13, distributed/run.py and launch.py; accelerate 1.15, commands/launch.py and utils/launch.py;
DeepSpeed 0.19, launcher/runner.py and launch.py; optimum-habana, examples/gaudi_spawn.py; the manual pages of Open MPI
4.1, MPICH 4 (also Intel MPI) and Slurm 24.05; docs.python.org/3/using/cmdline.html.

No files are read, such as accelerate's ~/.cache/huggingface/accelerate/default_config.yaml, so that a line means the
same everywhere.
"""

import re
from collections.abc import Mapping

from trainers.scripts.launchers.launcher import (
    PLAIN,
    VISIBLE,
    Device,
    Given,
    Launcher,
    Option,
    Reading,
    Workers,
    count_of,
    noted,
    ours,
    refused,
    variables,
    with_two_dashes,
    with_underscores,
)

# Reasons why options have no effect here.
BY_RAY = "Ray Train starts all workers by one line, on the nodes of its cluster, and connects and watches them"
CPUS = "the operating system places the workers of a node on its CPUs"
LOGS = "the output of each worker is in the logs of the run"
DEVICES = "Ray decides which device each worker gets"
_ALLOCATED = "the nodes are the Ray cluster's; cluster_configs/slurm.sbatch starts one on Slurm"
# Reasons why options are refused.
_IN_PACKAGE = "the workers start in the package of the run: leave it out"
_BY_VARIABLE = "set its variable in front of the line, as {}, and leave the option out"

# Words for the number of torchrun's workers on a node, and the device that each counts.
COUNTED: Mapping[str, Device | None] = {"gpu": "gpu", "cpu": "cpu", "auto": None}
# DeepSpeed's names of devices, in its own variable.
DEVICE_VARIABLE = "DS_ACCELERATOR"
DEEPSPEED_DEVICES: Mapping[str, Device] = {"cuda": "gpu", "cpu": "cpu", "hpu": "hpu"}
MIXED_PRECISION = ("no", "fp16", "bf16")
_USE_DYNAMO = ("use_fullgraph", "use_dynamic", "use_regional_compilation")
# Options of accelerate whose values it passes on in lower case.
_LOWER_CASE = ("true", "false", "none", "cpu", "nvme")
# Variables of Python by the name after -X.
IMPLEMENTATION = {
    "faulthandler": "PYTHONFAULTHANDLER",
    "dev": "PYTHONDEVMODE",
    "utf8": "PYTHONUTF8",
    "importtime": "PYTHONPROFILEIMPORTTIME",
    "tracemalloc": "PYTHONTRACEMALLOC",
}


def visible_devices(assignments: Mapping[str, str]) -> int | None:
    """Returns the number of devices in the first variable of VISIBLE; None if it lists all, or is not set."""
    for value in (value for name, value in assignments.items() if name in VISIBLE):
        devices = [device.strip() for device in value.split(",") if device.strip()]
        return None if devices == ["all"] else len([device for device in devices if device != "-1"])
    return None


def _on_nodes(given: Given, nodes: str, separator: str, per_node: int | None) -> Workers | None:
    """Returns the workers on a number of nodes, such as `2`, or on a least and a most number, such as `1:4`."""
    text = given.get(nodes, "1")
    match = re.fullmatch(rf"(\d+)(?:{separator}(\d+))?", text)
    low, high = (int(match[1]), int(match[2] or match[1])) if match is not None else (0, 0)
    if not 0 < low <= high:
        raise ValueError(f"{nodes} {text}: write a number, or the fewest and the most, e.g. {nodes} 1{separator}4")
    return Workers(low * per_node, high * per_node, per_node) if per_node else None


def _in_total(count: int | None, per_node: int | None = None) -> Workers | None:
    return Workers(count, count, per_node) if count else None


def _torchrun(given: Given, assignments: Mapping[str, str]) -> Reading:
    for name, value in assignments.items():
        if name.startswith("PET_"):
            raise ValueError(f"{name}={value}: write it as the option --{name.removeprefix('PET_').lower()}")
    counted = given.get("--nproc_per_node", "1")
    if counted in COUNTED:
        # torchrun on each machine would count the machine's own devices.
        per_node = None if counted == "cpu" else visible_devices(assignments)
    else:
        per_node = count_of(given, "--nproc_per_node", also=f", or one of {', '.join(COUNTED)}") or 1
    return Reading(workers=_on_nodes(given, "--nnodes", ":", per_node), device=COUNTED.get(counted))


def _torch_launch(given: Given, assignments: Mapping[str, str]) -> Reading:
    if "--no_python" in given and "--use_env" not in given:
        raise ValueError("--no_python needs --use_env: add it")
    return _torchrun(given, assignments)


def _accelerate(given: Given, assignments: Mapping[str, str]) -> Reading:
    if (precision := given.get("--mixed_precision", "no")) not in MIXED_PRECISION:
        raise ValueError(f"--mixed_precision {precision}: write one of {', '.join(MIXED_PRECISION)}")
    is_cpu, is_alone = "--cpu" in given, not given.keys() & {"--multi_gpu", "--use_deepspeed", "--use_fsdp"}
    found = {"ACCELERATE_CONFIG_DS_FIELDS": ""} if "--use_deepspeed" in given else _dynamo(given)
    if is_alone:
        found["ACCELERATE_USE_CPU"] = str(is_cpu)
    if is_cpu:
        found |= {"KMP_AFFINITY": "granularity=fine,compact,1,0", "KMP_BLOCKTIME": "1"}
    found |= {
        option.text: value.lower()
        for option in ACCELERATE.options
        if option.under is not None and (value := option.variable(given) or "").lower() in _LOWER_CASE
    }
    chosen = given.get("--gpu_ids", "all")
    devices = visible_devices(assignments) if chosen == "all" else len(chosen.split(","))
    count, nodes = count_of(given, "--num_processes"), count_of(given, "--num_machines") or 1
    count = count or (1 if is_cpu else devices)
    if count and count % nodes:
        raise ValueError(
            f"--num_processes {count}: it is the number on all machines: give a multiple of --num_machines {nodes}"
        )
    workers = _in_total(count, count // nodes if count and nodes > 1 else None)
    return Reading(
        workers=workers, device="cpu" if is_cpu else "gpu" if "--multi_gpu" in given else None, variables=found
    )


def _dynamo(given: Given) -> dict[str, str]:
    return {
        "ACCELERATE_DYNAMO_BACKEND": given.get("--dynamo_backend", "no").upper(),
        "ACCELERATE_DYNAMO_MODE": given.get("--dynamo_mode", "default"),
        **{f"ACCELERATE_DYNAMO_{name.upper()}": str(f"--dynamo_{name}" in given) for name in _USE_DYNAMO},
    }


def _deepspeed(given: Given, assignments: Mapping[str, str]) -> Reading:
    device = DEEPSPEED_DEVICES.get(assignments.get(DEVICE_VARIABLE, "cuda"))
    if include := given.get("--include"):
        # In `worker-0:0,1@worker-1`, a host may not list its devices.
        slots = [host.partition(":")[2] for host in include.split("@")]
        count = sum(len(each.split(",")) for each in slots) if all(slots) else None
        return Reading(workers=_in_total(count), device=device)
    nodes, per_node = count_of(given, "--num_nodes"), count_of(given, "--num_gpus")
    if "--hostfile" not in given:
        nodes, per_node = nodes or 1, per_node or visible_devices(assignments)
    return Reading(workers=_in_total((nodes or 0) * (per_node or 0), per_node), device=device)


def _gaudi_spawn(given: Given, assignments: Mapping[str, str]) -> Reading:
    # With a file of hosts, the number is per host, and how many hosts there are is not known.
    count = None if "--hostfile" in given else count_of(given, "--world_size") or 1
    return Reading(workers=_in_total(count), device="hpu")


def _mpirun(given: Given, assignments: Mapping[str, str]) -> Reading:
    passed = [text.partition("=") for text in given.get("-x", ())]
    count, per_node = count_of(given, "--np"), count_of(given, "--npernode")
    if count is None and (hosts := given.get("--host")):
        # In `a:4,b`, a host without a number has one process.
        slots = [per_node or int(host.partition(":")[2] or 1) for host in hosts.split(",")]
        count = sum(slots)
    return Reading(
        workers=_in_total(count, per_node),
        assignments={name: value for name, equals, value in passed if equals} | dict(given.get("--genv", ())),
        notes=tuple(
            f"mpirun -x {name}: give its value, -x {name}=…, where the program needs it"
            for name, equals, _ in passed
            if not equals
        ),
    )


def _srun(given: Given, assignments: Mapping[str, str]) -> Reading:
    per_node, count = count_of(given, "--ntasks-per-node"), count_of(given, "--ntasks")
    # Without a number, Slurm starts one task on each node.
    on_nodes = _on_nodes(given, "--nodes", "-", per_node or 1)
    # Values are such as `8`, `gpu:8`, `gpu:a100:8` or `gpu`; other resources are not devices.
    resources = [given.get(name, "0") for name in ("--gpus-per-node", "--gpus-per-task", "--gpus")]
    resources += [text for text in given.get("--gres", "").split(",") if text.startswith("gpu")]
    # Of `ALL,NAME=value`, only assignments count, since workers never have the variables that an export would omit.
    exported = [part.partition("=") for part in given.get("--export", "").split(",")]
    return Reading(
        workers=_in_total(count, per_node) or on_nodes,
        device="gpu" if any(text.rpartition(":")[2] != "0" for text in resources) else None,
        assignments={name: value for name, equals, value in exported if equals},
    )


def _python(given: Given, assignments: Mapping[str, str]) -> Reading:
    found = {"PYTHONWARNINGS": ",".join(given["-W"])} if "-W" in given else {}
    for name, _, value in (text.partition("=") for text in given.get("-X", ())):
        if name not in IMPLEMENTATION:
            raise ValueError(f"-X {name}: of these options there are {', '.join(IMPLEMENTATION)}: leave it out")
        found[IMPLEMENTATION[name]] = value or "1"
    return Reading(workers=Workers(1, 1), variables=found)


TORCHRUN = Launcher(
    "torchrun",
    (
        *ours("--nnodes= --nproc_per_node= --max_restarts= -m/--module --no_python"),
        *variables("""
            --rdzv_id=  TORCHELASTIC_RUN_ID
            --role=     ROLE_NAME
        """),
        *noted(
            BY_RAY,
            "--rdzv_backend= --rdzv_endpoint= --rdzv_conf= --master_addr= --master_port= --local_addr= --standalone "
            "--node_rank= --monitor_interval= --start_method= --event_log_handler= --signals_to_handle=",
        ),
        *noted(
            LOGS,
            "--log_dir= -r/--redirects= -t/--tee= --local_ranks_filter= --logs_specs= --duplicate_stdout_filters= "
            "--duplicate_stderr_filters=",
        ),
        *noted(
            "script.stop_grace_s, or of a training job.stop_grace_s, says how long stopping may take",
            "--shutdown_timeout=",
        ),
        *noted(CPUS, "--numa_binding="),
        *noted("each worker is a process of its own, as without it", "--run_path"),
        *refused(
            "the workers of a node have LOCAL_RANK 0, 1, …: leave it out, and have the script use the device of "
            "LOCAL_RANK",
            "--virtual_local_rank",
        ),
    ),
    _torchrun,
    ("torchrun", "-m torch.distributed.run"),
    spelled=with_underscores,
    abbreviates=True,
)
TORCH_LAUNCH = Launcher(
    "torch.distributed.launch",
    (*TORCHRUN.options, *ours("--use_env")),
    _torch_launch,
    ("-m torch.distributed.launch",),
    spelled=with_underscores,
    abbreviates=True,
    local_rank=("--local-rank", "--use_env"),
)
ACCELERATE = Launcher(
    "accelerate launch",
    (
        *ours("--num_processes= --num_machines= --max_restarts= --cpu --multi_gpu -m/--module --no_python"),
        *ours("--dynamo_backend= --dynamo_mode="),
        *ours(" ".join(f"--dynamo_{name}" for name in _USE_DYNAMO)),
        *variables("""
            --mixed_precision=              ACCELERATE_MIXED_PRECISION  no
            --num_cpu_threads_per_process=  OMP_NUM_THREADS
            --role=                         ROLE_NAME
            --debug                         ACCELERATE_DEBUG_MODE       true
            --enable_cpu_affinity           ACCELERATE_CPU_AFFINITY     1
            --use_deepspeed                 ACCELERATE_USE_DEEPSPEED    true
            --use_fsdp                      ACCELERATE_USE_FSDP         true
        """),
        *variables(
            """
            --zero_stage=                     ACCELERATE_DEEPSPEED_ZERO_STAGE
            --gradient_accumulation_steps=    ACCELERATE_GRADIENT_ACCUMULATION_STEPS
            --gradient_clipping=              ACCELERATE_GRADIENT_CLIPPING
            --offload_optimizer_device=       ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE
            --offload_param_device=           ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE
            --zero3_init_flag=                ACCELERATE_DEEPSPEED_ZERO3_INIT
            --zero3_save_16bit_model=         ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL
            --deepspeed_config_file=          ACCELERATE_DEEPSPEED_CONFIG_FILE
            --deepspeed_moe_layer_cls_names=  ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES
            """,
            under="--use_deepspeed",
        ),
        *variables(
            """
            --fsdp_version=                           FSDP_VERSION                           1
            --fsdp_sharding_strategy=                 FSDP_SHARDING_STRATEGY                 FULL_SHARD
            --fsdp_reshard_after_forward=             FSDP_RESHARD_AFTER_FORWARD             true
            --fsdp_offload_params=                    FSDP_OFFLOAD_PARAMS                    false
            --fsdp_min_num_params=                    FSDP_MIN_NUM_PARAMS                    100000000
            --fsdp_auto_wrap_policy=                  FSDP_AUTO_WRAP_POLICY
            --fsdp_transformer_layer_cls_to_wrap=     FSDP_TRANSFORMER_CLS_TO_WRAP
            --fsdp_backward_prefetch=                 FSDP_BACKWARD_PREFETCH
            --fsdp_state_dict_type=                   FSDP_STATE_DICT_TYPE
            --fsdp_forward_prefetch=                  FSDP_FORWARD_PREFETCH                  false
            --fsdp_use_orig_params=                   FSDP_USE_ORIG_PARAMS                   true
            --fsdp_cpu_ram_efficient_loading=         FSDP_CPU_RAM_EFFICIENT_LOADING         true
            --fsdp_sync_module_states=                FSDP_SYNC_MODULE_STATES                true
            --fsdp_activation_checkpointing=          FSDP_ACTIVATION_CHECKPOINTING          false
            --fsdp_activation_checkpointing_offload=  FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD  false
            """,
            under="--use_fsdp",
        ),
        *noted(
            BY_RAY,
            "--main_process_ip= --main_process_port= --rdzv_backend= --rdzv_conf= --same_network --machine_rank= "
            "--monitor_interval= --mpirun_hostfile= --deepspeed_hostfile= --deepspeed_exclusion_filter= "
            "--deepspeed_inclusion_filter= --deepspeed_multinode_launcher=",
        ),
        *noted(LOGS, "-t/--tee= --log_dir= -q/--quiet"),
        *noted(DEVICES, "--gpu_ids="),
        *noted(
            "accelerate launch reads it and does not pass it on: set ACCELERATE_DEEPSPEED_{}=… in front of the line",
            "offload_optimizer_nvme_path= offload_param_nvme_path=",
            prefix="--",
        ),
        *noted("training does not use TPUs anyway", "--no_tpu_cluster"),
        *refused(
            "the file is not read, since it belongs to a machine: write its settings as options, e.g. --num_processes "
            "8 --mixed_precision bf16, or --use_deepspeed or --use_fsdp with their options",
            "--config_file=",
        ),
        *refused(
            "TPUs are not supported: leave it out, and train on GPUs or CPUs",
            "--vm= --env= --main_training_function= --tpu --tpu_cluster --tpu_use_sudo --downcast_bf16",
        ),
        *refused(
            "SageMaker is not used, and a line must not contain keys: leave it out",
            "--aws_access_key_id= --aws_secret_access_key=",
        ),
        *refused(_BY_VARIABLE.format("ACCELERATE_{}=true"), "use_megatron_lm use_parallelism_config", prefix="--"),
        *refused(
            _BY_VARIABLE.format("MEGATRON_LM_{}=…"),
            "tp_degree= use_custom_fsdp= no_load_optim= eod_mask_loss= overlap_cpu_optimizer_d2h_h2d= no_save_optim= "
            "optimizer_cpu_offload= use_precision_aware_optimizer= decoder_last_pipeline_num_layers= pp_degree= "
            "num_micro_batches= sequence_parallelism= recompute_activations= use_distributed_optimizer= "
            "gradient_clipping= recompute_granularity= recompute_method= recompute_num_layers= attention_backend= "
            "expert_model_parallel_size= context_parallel_size= attention_dropout= hidden_dropout= "
            "attention_softmax_in_fp32= expert_tensor_parallel_size= calculate_per_token_loss= "
            "use_rotary_position_embeddings=",
            prefix="--megatron_lm_",
        ),
        *refused(
            _BY_VARIABLE.format("PARALLELISM_CONFIG_{}=…"),
            "dp_replicate_size= dp_shard_size= tp_size= cp_size= cp_backend= cp_comm_strategy= sp_size= sp_backend= "
            "sp_seq_length= sp_seq_length_is_variable= sp_attn_implementation=",
            prefix="--parallelism_config_",
        ),
        *refused(
            _BY_VARIABLE.format("ACCELERATE_FP8_{}=…"),
            "backend= margin= interval= format= amax_history_len= amax_compute_algo= override_linear_precision= "
            "opt_level= enable_fsdp_float8_all_gather= pad_inner_dim= use_autocast_during_eval",
            prefix="--fp8_",
        ),
    ),
    _accelerate,
    ("accelerate launch", "accelerate-launch", "-m accelerate.commands.launch"),
    spelled=with_underscores,
    exclusive=(("--cpu", "--multi_gpu", "--use_deepspeed", "--use_fsdp"),),
)
DEEPSPEED = Launcher(
    "deepspeed",
    (
        *ours("--num_nodes= --num_gpus/--num_accelerators= --module --no_python --no_local_rank"),
        *noted(f"{DEVICES}; their number is kept", "-i/--include="),
        *noted(
            BY_RAY,
            "-H/--hostfile= --master_port= --master_addr= --node_rank= --launcher= --launcher_args= --ssh_port= "
            "--no_ssh --no_ssh_check --force_multi",
        ),
        *noted(LOGS, "--enable_each_rank_log="),
        *noted("it is about the output of the launcher, which does not run", "--log_level= -q/--quiet"),
        *noted("`rayscribe stop` stops a run", "--save_pid"),
        *noted(CPUS, "--bind_core_list= --bind_cores_to_rank"),
        *refused(f"{DEVICES}: leave it out, and give --num_nodes and --num_gpus", "-e/--exclude="),
        *refused(
            "leave it out: each line is one training; start one with each config that is to be tried", "--autotuning="
        ),
        *refused(
            "the packages of workers are those of job.runtime_env, or of the nodes: leave it out, and name them there",
            "--venv_script=",
        ),
    ),
    _deepspeed,
    ("deepspeed", "ds", "-m deepspeed.launcher.runner"),
    abbreviates=True,
    exclusive=(("--include", "--num_nodes"), ("--include", "--num_gpus")),
    local_rank=("--local_rank", "--no_local_rank"),
)
GAUDI_SPAWN = Launcher(
    "gaudi_spawn.py",
    (
        *ours("--world_size="),
        *noted(BY_RAY, "--use_mpi --use_deepspeed --use_env --hostfile= --process_per_node= --master_port="),
    ),
    _gaudi_spawn,
    ("gaudi_spawn.py",),
    abbreviates=True,
    exclusive=(("--use_mpi", "--use_deepspeed"),),
)
MPIRUN = Launcher(
    "mpirun",
    (
        *ours("--np/-n/-c= --npernode/--ppn/-N= -x=* --genv/--env=2*"),
        *noted(
            BY_RAY,
            "-H/--host/--hosts= --hostfile/--machinefile/-f= --map-by= --rank-by= --bind-to= --rankfile= "
            "--oversubscribe --nooversubscribe --use-hwthread-cpus --bynode --byslot --bind-to-none",
        ),
        *noted("the workers communicate by torch.distributed, not by MPI", "--mca=2* --gmca=2* --tune= --prefix="),
        *noted("the workers run as the user of the Ray cluster", "--allow-run-as-root"),
        *noted(
            LOGS,
            "--output-filename= --tag-output --timestamp-output --merge-stderr-to-stdout --prepend-rank/-l "
            "--report-bindings --display-map --display-allocation -v/--verbose -q/--quiet",
        ),
        *noted("name the variables that the program needs, by -x NAME=value", "--genvall"),
        *refused(_IN_PACKAGE, "--wdir/--wd="),
        *refused("the workers run their own Python packages: leave it out", "--path="),
    ),
    _mpirun,
    ("mpirun", "mpiexec", "mpiexec.hydra", "orterun"),
    spelled=with_two_dashes,
    starts_commands=True,
    note="mpirun: RANK, WORLD_SIZE, LOCAL_RANK and others of torchrun's are set, none of MPI's",
)
SRUN = Launcher(
    "srun",
    (
        *ours("-n/--ntasks= -N/--nodes= --ntasks-per-node= --gpus-per-node= --gpus-per-task= -G/--gpus= --gres="),
        *ours("--export="),
        *noted(
            _ALLOCATED,
            "-p/--partition= -A/--account= -q/--qos= -t/--time= -J/--job-name= --jobid= --reservation= -w/--nodelist= "
            "-x/--exclude= -C/--constraint= -m/--distribution= --comment= --nodefile= --exclusive --overlap "
            "--overcommit/-O --oversubscribe/-s -Z/--no-allocate",
        ),
        *noted(
            "scaling.resources_per_worker says what each worker reserves",
            "-c/--cpus-per-task= --mem= --mem-per-cpu= --mem-per-gpu= --cpus-per-gpu=",
        ),
        *noted(CPUS, "--cpu-bind= --gpu-bind= --mem-bind="),
        *noted("torch.distributed connects the workers", "--mpi= --network="),
        *noted(LOGS, "-o/--output= -e/--error= -i/--input= -l/--label -u/--unbuffered -v/--verbose -Q/--quiet"),
        *noted(BY_RAY, "--signal= -W/--wait= -T/--threads= --no-kill/-k --disable-status/-X"),
        # Its value is optional, and Slurm accepts a value only after `=`, so each spelling is a separate name.
        Option(
            ("--kill-on-bad-exit", "-K", "-K0", "-K1", "--kill-on-bad-exit=0", "--kill-on-bad-exit=1"),
            "noted",
            BY_RAY,
        ),
        *refused("a run has no terminal: leave it out", "--pty"),
        *refused(_IN_PACKAGE, "-D/--chdir="),
        *refused(
            "the container of workers is the Ray cluster's: leave it out, and start the cluster in the image",
            "--container= --container-image= --container-mounts= --container-name= --container-workdir= "
            "--container-env= --container-mount-home --no-container-mount-home",
        ),
        *refused("several programs are not one training: write the line of one", "--multi-prog="),
    ),
    _srun,
    ("srun",),
    starts_commands=True,
    note="srun: RANK, WORLD_SIZE, LOCAL_RANK and others of torchrun's are set, none of Slurm's",
)
# Python starts one process; its options become variables with the same meaning.
PYTHON = Launcher(
    PLAIN,
    (
        *ours("-m=... -W=* -X=*"),
        *variables("""
            -u   PYTHONUNBUFFERED         1
            -B   PYTHONDONTWRITEBYTECODE  1
            -O   PYTHONOPTIMIZE           1
            -OO  PYTHONOPTIMIZE           2
            -s   PYTHONNOUSERSITE         1
            -P   PYTHONSAFEPATH           1
            -v   PYTHONVERBOSE            1
        """),
        *refused("write the program into a file, and name the file", "-c=..."),
        *refused(
            "the workers run the Python of the cluster with its own start: leave it out",
            "-E -I -S -i -x -b -bb -d -q",
        ),
    ),
    _python,
    ("python",),
)
LAUNCHERS = (TORCHRUN, TORCH_LAUNCH, ACCELERATE, DEEPSPEED, GAUDI_SPAWN, MPIRUN, SRUN, PYTHON)
