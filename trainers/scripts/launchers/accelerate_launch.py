"""accelerate launch. What it would set for the program: accelerate/utils/launch.py of accelerate 1.15.

Its own config file, ~/.cache/huggingface/accelerate/default_config.yaml, is not read: a line means the same everywhere.
"""

from trainers.scripts.launchers.accelerate_options import DEEPSPEED, DYNAMO, FSDP, LOWERED, OPTIONS
from trainers.scripts.launchers.launch_line import Device, Workers
from trainers.scripts.launchers.launch_option import DEVICES
from trainers.scripts.launchers.launcher import Given, Launcher, Reading, Surroundings, dash_or_underscore, kind_of

_KINDS = ("cpu", "multi_gpu", "use_deepspeed", "use_fsdp")
# As their variables have them.
_AS_WRITTEN = ("fsdp_version", "fsdp_sharding_strategy", "fsdp_min_num_params")
_FSDP_NAMES = {"fsdp_version": "FSDP_VERSION", "fsdp_transformer_layer_cls_to_wrap": "FSDP_TRANSFORMER_CLS_TO_WRAP"}


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
            # Those without a default are names of torch's or of classes.
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
    """What the options of accelerate launch say."""
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
