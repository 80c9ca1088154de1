"""Reads the options of torchrun and torch.distributed.launch. Source: run.py and launch.py of torch 2.13."""

from collections.abc import Mapping
from dataclasses import replace

from trainers.scripts.launchers.launch_line import Device, Reading, Workers
from trainers.scripts.launchers.launch_option import (
    CPUS,
    LOGS,
    ONE_LINE,
    RENDEZVOUS,
    SUPERVISED,
    not_negative,
    noted,
    ours,
    refused,
    switch,
    variable,
)
from trainers.scripts.launchers.launcher import Given, Launcher, Surroundings, dash_or_underscore, kind_of

# Words that stand for the number of workers on a node, and the device that they count.
COUNTED: Mapping[str, Device | None] = {"gpu": "gpu", "cpu": "cpu", "auto": None}

OPTIONS = (
    ours("--nnodes"),
    ours("--nproc_per_node"),
    ours("--max_restarts", read=not_negative),
    switch("-m", "--module"),
    switch("--no_python"),
    variable("TORCHELASTIC_RUN_ID", "--rdzv_id"),
    variable("ROLE_NAME", "--role"),
    *noted(
        RENDEZVOUS,
        ["--rdzv_backend", "--rdzv_endpoint", "--rdzv_conf", "--master_addr", "--master_port", "--local_addr"],
        ["--standalone"],
    ),
    *noted(ONE_LINE, ["--node_rank"]),
    *noted(
        LOGS,
        [
            *("--log_dir", "-r --redirects", "-t --tee", "--local_ranks_filter", "--logs_specs"),
            *("--duplicate_stdout_filters", "--duplicate_stderr_filters"),
        ],
    ),
    *noted(SUPERVISED, ["--monitor_interval", "--start_method", "--event_log_handler", "--signals_to_handle"]),
    *noted(
        "script.stop_grace_s, or of a training job.stop_grace_s, says how long stopping may take",
        ["--shutdown_timeout"],
    ),
    *noted(CPUS, ["--numa_binding"]),
    *noted("each worker is a process of its own, as without it", switches=["--run_path"]),
    *refused(
        "the workers of a node have LOCAL_RANK 0, 1, …: leave it out, and have the script use the device of LOCAL_RANK",
        switches=["--virtual_local_rank"],
    ),
)


def _nodes(text: str) -> tuple[int, int]:
    fewest, colon, most = text.partition(":")
    try:
        low, high = int(fewest), int(most if colon else fewest)
    except ValueError:
        low, high = 0, 0
    if not 0 < low <= high:
        raise ValueError(f"--nnodes {text}: write a number, or the fewest and the most, e.g. --nnodes 1:4")
    return low, high


def _per_node(text: str, devices: int | None) -> int | None:
    """Returns the number of workers on a node; None if each machine would count its own devices."""
    if text in COUNTED:
        return None if text == "cpu" else devices
    if text.isdecimal() and int(text) > 0:
        return int(text)
    raise ValueError(f"--nproc_per_node {text}: write a number, or one of {', '.join(COUNTED)}")


def read(given: Given, surroundings: Surroundings) -> Reading:
    """Reads the options of torchrun."""
    if variables := [name for name in surroundings.assignments if name.startswith("PET_")]:
        option = variables[0].removeprefix("PET_").lower()
        raise ValueError(f"{variables[0]}={surroundings.assignments[variables[0]]}: write it as the option --{option}")
    low, high = _nodes(given.get("nnodes", "1"))
    counted = given.get("nproc_per_node", "1")
    per_node = _per_node(counted, surroundings.devices)
    return Reading(
        workers=Workers(low * per_node, high * per_node, per_node) if per_node is not None else None,
        device=COUNTED.get(counted),
        max_retries=given.get("max_restarts"),
        kind=kind_of(given),
    )


def read_launch(given: Given, surroundings: Surroundings) -> Reading:
    """Reads the options of torch.distributed.launch, which passes a script its rank as an argument."""
    reading = read(given, surroundings)
    if given.get("use_env"):
        return reading
    if given.get("no_python"):
        raise ValueError("--no_python needs --use_env: add it")
    return replace(reading, local_rank_option="--local-rank")


TORCHRUN = Launcher(
    "torchrun",
    OPTIONS,
    read,
    commands=("torchrun",),
    modules=("torch.distributed.run",),
    spellings=dash_or_underscore,
    abbreviates=True,
)
TORCH_LAUNCH = Launcher(
    "torch.distributed.launch",
    (*OPTIONS, switch("--use_env")),
    read_launch,
    modules=("torch.distributed.launch",),
    spellings=dash_or_underscore,
    abbreviates=True,
)
