"""Reads the options of Optimum's launcher for Intel Gaudi. Source: optimum-habana, examples/gaudi_spawn.py."""

from trainers.scripts.launchers.launch_line import Reading, Workers
from trainers.scripts.launchers.launch_option import NODES, RENDEZVOUS, noted, ours, positive, switch
from trainers.scripts.launchers.launcher import Given, Launcher, Surroundings

_STARTED = "Ray Train starts the workers; the script itself is started as with torchrun"

OPTIONS = (
    ours("--world_size", read=positive),
    ours("--hostfile"),
    switch("--use_mpi"),
    switch("--use_deepspeed"),
    *noted(_STARTED, switches=["--use_env"]),
    *noted(NODES, ["--process_per_node"]),
    *noted(RENDEZVOUS, ["--master_port"]),
)


def read(given: Given, surroundings: Surroundings) -> Reading:
    """Reads the options: `--world_size` workers, on each host if there is a hostfile."""
    if given.get("use_mpi") and given.get("use_deepspeed"):
        raise ValueError("--use_mpi and --use_deepspeed exclude each other: keep one")
    notes = tuple(f"gaudi_spawn.py --{name}: {_STARTED}" for name in ("use_mpi", "use_deepspeed") if given.get(name))
    if hostfile := given.get("hostfile"):
        nodes = f"gaudi_spawn.py --hostfile {hostfile}: {NODES}"
        return Reading(device="hpu", notes=(*notes, nodes))
    count = given.get("world_size", 1)
    return Reading(workers=Workers(count, count), device="hpu", notes=notes)


GAUDI_SPAWN = Launcher("gaudi_spawn.py", OPTIONS, read, scripts=("gaudi_spawn.py",), abbreviates=True)
