"""Reads the options of Slurm's srun. Source: its manual page, Slurm 24.05."""

import re

from trainers.scripts.launchers.launch_line import Reading, Workers
from trainers.scripts.launchers.launch_option import CPUS, LOGS, SUPERVISED, Option, noted, ours, positive, refused
from trainers.scripts.launchers.launcher import Given, Launcher, Surroundings

_ALLOCATED = "the nodes are the Ray cluster's; cluster_configs/slurm.sbatch starts one on Slurm"
_RESERVED = "scaling.resources_per_worker says what each worker reserves"
# Options with an optional value, which Slurm accepts only after `=`, so each spelling is a name of its own.
_KILL = "--kill-on-bad-exit -K -K0 -K1 --kill-on-bad-exit=0 --kill-on-bad-exit=1"

OPTIONS = (
    ours("-n", "--ntasks", read=positive),
    ours("-N", "--nodes"),
    ours("--ntasks-per-node", read=positive),
    ours("--gpus-per-node"),
    ours("--gpus-per-task"),
    ours("-G", "--gpus"),
    ours("--gres"),
    ours("--export"),
    *noted(
        _ALLOCATED,
        [
            *("-p --partition", "-A --account", "-q --qos", "-t --time", "-J --job-name", "--jobid", "--reservation"),
            *("-w --nodelist", "-x --exclude", "-C --constraint", "-m --distribution", "--comment", "--nodefile"),
        ],
        ["--exclusive", "--overlap", "--overcommit -O", "--oversubscribe -s"],
    ),
    *noted(_RESERVED, ["-c --cpus-per-task", "--mem", "--mem-per-cpu", "--mem-per-gpu", "--cpus-per-gpu"]),
    *noted(CPUS, ["--cpu-bind", "--gpu-bind", "--mem-bind"]),
    *noted("torch.distributed connects the workers", ["--mpi", "--network"]),
    *noted(
        LOGS,
        ["-o --output", "-e --error", "-i --input"],
        ["-l --label", "-u --unbuffered", "-v --verbose", "-Q --quiet"],
    ),
    *noted(SUPERVISED, ["--signal", "-W --wait", "-T --threads"], [_KILL, "--no-kill -k", "--disable-status -X"]),
    *refused("a run has no terminal: leave it out", switches=["--pty"]),
    *refused("the workers start in the package of the run: leave it out", ["-D --chdir"]),
    *refused(
        "the container of workers is the Ray cluster's: leave it out, and start the cluster in the image",
        [
            *("--container", "--container-image", "--container-mounts", "--container-name", "--container-workdir"),
            "--container-env",
        ],
        ["--container-mount-home", "--no-container-mount-home"],
    ),
    *refused("several programs are not one training: write the line of one", ["--multi-prog"]),
    Option(("-Z", "--no-allocate"), "noted", _ALLOCATED, read=None),
)


def _count(text: str | None) -> int:
    """Returns the number of GPUs in `8`, `gpu:8`, `gpu:a100:8` or `gpu`."""
    if not text:
        return 0
    number = text.rpartition(":")[2]
    return int(number) if number.isdecimal() else 1


def _exported(text: str) -> dict[str, str]:
    """Returns the variables in `ALL,NAME=value`; workers do not have variables that an export omits anyway."""
    return {name: value for part in text.split(",") for name, equals, value in [part.partition("=")] if equals}


def read(given: Given, surroundings: Surroundings) -> Reading:
    """Reads the number of tasks and nodes, and whether they have GPUs."""
    nodes = given.get("nodes", "1")
    if not re.fullmatch(r"\d+(-\d+)?", nodes) or int(nodes.partition("-")[0]) < 1:
        raise ValueError(f"--nodes {nodes}: write a number, or the fewest and the most, e.g. --nodes 1-4")
    low, _, high = nodes.partition("-")
    per_node, count = given.get("ntasks_per_node"), given.get("ntasks")
    if count is not None:
        workers = Workers(count, count, per_node)
    else:
        # Without a number, Slurm starts one task on each node.
        workers = Workers(int(low) * (per_node or 1), int(high or low) * (per_node or 1), per_node)
    resources = [given.get(name) for name in ("gpus_per_node", "gpus_per_task", "gpus")]
    resources += [text for text in given.get("gres", "").split(",") if text.startswith("gpu")]
    return Reading(
        workers=workers,
        device="gpu" if any(_count(text) for text in resources) else None,
        assignments=_exported(given.get("export", "")),
        kind="command",
        notes=("srun: RANK, WORLD_SIZE, LOCAL_RANK and others of torchrun's are set, none of Slurm's",),
    )


SRUN = Launcher("srun", OPTIONS, read, commands=("srun",))
