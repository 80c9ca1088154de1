"""Reads the options of DeepSpeed's launcher. Source: deepspeed/launcher/runner.py and launch.py of DeepSpeed 0.19."""

from collections.abc import Mapping

from trainers.scripts.launchers.launch_line import Device, Reading, Workers
from trainers.scripts.launchers.launch_option import (
    CPUS,
    DEVICES,
    LOGS,
    NODES,
    ONE_LINE,
    RENDEZVOUS,
    noted,
    ours,
    refused,
    switch,
)
from trainers.scripts.launchers.launcher import Given, Launcher, Surroundings, kind_of

# DeepSpeed's own variable for the device.
ACCELERATOR = "DS_ACCELERATOR"
KINDS: Mapping[str, Device] = {"cuda": "gpu", "cpu": "cpu", "hpu": "hpu"}

OPTIONS = (
    ours("--num_nodes", read=int),
    ours("--num_gpus", "--num_accelerators", read=int),
    ours("-i", "--include"),
    ours("-H", "--hostfile"),
    switch("--module"),
    switch("--no_python"),
    switch("--no_local_rank"),
    *noted(
        RENDEZVOUS,
        ["--master_port", "--master_addr"],
    ),
    *noted(ONE_LINE, ["--node_rank"]),
    *noted(
        f"{NODES}, without SSH or MPI",
        ["--launcher", "--launcher_args", "--ssh_port"],
        ["--no_ssh", "--no_ssh_check", "--force_multi"],
    ),
    *noted(LOGS, ["--enable_each_rank_log"]),
    *noted("it is about the output of the launcher, which does not run", ["--log_level"], ["-q --quiet"]),
    *noted("`rayscribe stop` stops a run", switches=["--save_pid"]),
    *noted(
        CPUS,
        ["--bind_core_list"],
        ["--bind_cores_to_rank"],
    ),
    *refused(
        "Ray decides which device each worker gets: leave it out, and give --num_nodes and --num_gpus", ["-e --exclude"]
    ),
    *refused(
        "leave it out: each line is one training; start one with each config that is to be tried", ["--autotuning"]
    ),
    *refused(
        "the packages of workers are those of job.runtime_env, or of the nodes: leave it out, and name them there",
        ["--venv_script"],
    ),
)


def _included(text: str) -> int | None:
    """Returns the number of devices in `worker-0:0,1@worker-1`; None if a host does not list its devices."""
    slots = [host.partition(":")[2] for host in text.split("@")]
    return sum(len(each.split(",")) for each in slots) if all(slots) else None


def _workers(given: Given, surroundings: Surroundings) -> tuple[Workers | None, tuple[str, ...]]:
    nodes, per_node = given.get("num_nodes", -1), given.get("num_gpus", -1)
    include, hostfile = given.get("include"), given.get("hostfile")
    if include and (nodes >= 0 or per_node >= 0):
        raise ValueError("--include excludes --num_nodes and --num_gpus: keep the latter")
    if include:
        count = _included(include)
        note = f"deepspeed --include {include}: {DEVICES}; their number is kept"
        return Workers(count, count) if count is not None else None, (note,)
    notes = (f"deepspeed --hostfile {hostfile}: {NODES}",) if hostfile else ()
    if per_node < 1 and surroundings.devices is not None and hostfile is None:
        per_node = surroundings.devices
    if nodes < 1 and hostfile is None:
        nodes = 1
    if nodes < 1 or per_node < 1:
        return None, notes
    return Workers(nodes * per_node, nodes * per_node, per_node), notes


def read(given: Given, surroundings: Surroundings) -> Reading:
    """Reads the options of deepspeed."""
    workers, notes = _workers(given, surroundings)
    return Reading(
        workers=workers,
        device=KINDS.get(surroundings.assignments.get(ACCELERATOR, "cuda")),
        local_rank_option=None if given.get("no_local_rank") else "--local_rank",
        kind=kind_of(given),
        notes=notes,
    )


DEEPSPEED = Launcher(
    "deepspeed", OPTIONS, read, commands=("deepspeed", "ds"), modules=("deepspeed.launcher.runner",), abbreviates=True
)
