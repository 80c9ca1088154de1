"""Reads the options of mpirun and mpiexec. Source: the manual pages of Open MPI 4.1 and MPICH 4 (also Intel MPI)."""

from trainers.scripts.launchers.launch_line import Reading, Workers
from trainers.scripts.launchers.launch_option import LOGS, NODES, Option, noted, ours, positive, refused
from trainers.scripts.launchers.launcher import Given, Launcher, Surroundings, one_dash_or_two

_TRANSPORT = "the workers communicate by torch.distributed, not by MPI"

OPTIONS = (
    ours("--np", "-n", "-c", read=positive),
    ours("--npernode", "--ppn", "-N", read=positive),
    ours("-H", "--host", "--hosts"),
    ours("-x", repeated=True),
    Option(("--genv", "--env"), "ours", count=2, repeated=True),
    *noted(NODES, ["--hostfile --machinefile -f", "--map-by", "--rank-by", "--bind-to", "--rankfile"]),
    *noted(
        NODES,
        switches=[
            "--oversubscribe",
            "--nooversubscribe",
            "--use-hwthread-cpus",
            "--bynode",
            "--byslot",
            "--bind-to-none",
        ],
    ),
    Option(("--mca",), "noted", _TRANSPORT, count=2, repeated=True),
    Option(("--gmca",), "noted", _TRANSPORT, count=2, repeated=True),
    *noted(_TRANSPORT, ["--tune", "--prefix"]),
    *noted("the workers run as the user of the Ray cluster", switches=["--allow-run-as-root"]),
    *noted(
        LOGS,
        ["--output-filename"],
        [
            *("--tag-output", "--timestamp-output", "--merge-stderr-to-stdout", "--prepend-rank -l"),
            *("--report-bindings", "--display-map", "--display-allocation", "-v --verbose", "-q --quiet"),
        ],
    ),
    *noted("name the variables that the program needs, by -x NAME=value", switches=["--genvall"]),
    *refused("the workers start in the package of the run: leave it out", ["--wdir --wd"]),
    *refused("the workers run their own Python packages: leave it out", ["--path"]),
)


def _slots(hosts: str) -> int:
    """Returns the number of processes in `a:4,b:4`; one for a host without a number."""
    return sum(int(host.partition(":")[2] or 1) for host in hosts.split(","))


def read(given: Given, surroundings: Surroundings) -> Reading:
    """Reads the number of processes, and their variables."""
    assignments, notes = {}, ["mpirun: RANK, WORLD_SIZE, LOCAL_RANK and others of torchrun's are set, none of MPI's"]
    for text in given.get("x", ()):
        name, equals, value = text.partition("=")
        if equals:
            assignments[name] = value
        else:
            notes.append(f"mpirun -x {name}: give its value, -x {name}=…, where the program needs it")
    assignments |= dict(given.get("genv", ()))
    hosts, per_node, count = given.get("host"), given.get("npernode"), given.get("np")
    if hosts:
        notes.append(f"mpirun --host {hosts}: {NODES}")
    if count is None and hosts:
        count = per_node * len(hosts.split(",")) if per_node else _slots(hosts)
    return Reading(
        workers=Workers(count, count, per_node) if count is not None else None,
        assignments=assignments,
        kind="command",
        notes=tuple(notes),
    )


MPIRUN = Launcher(
    "mpirun", OPTIONS, read, commands=("mpirun", "mpiexec", "mpiexec.hydra", "orterun"), spellings=one_dash_or_two
)
