"""Clusters of this machine alone, for the first five minutes, started by `ray start`."""

import os
import subprocess
import sys

from jobs.addresses import cluster_address
from jobs.clusters.ray_jobs import RayJobs
from jobs.clusters.remembered.cluster_record import ClusterRecord, check_name, ensure_token, find_record
from jobs.errors import ConflictError
from trainers.distributed.local_ray import MARK, LocalRay, processes_of, start_ray

# Two workers and the CPU of Ray Data fit, as the recipes ask for; on fewer cores they share them.
LEAST_CPUS = 4


def up(
    name: str, *, num_cpus: int | None, dashboard_port: int | None, idle_stop_minutes: int | None, now_s: float
) -> tuple[ClusterRecord, bool]:
    """Starts a Ray that goes on when this process has ended; one that runs is left as it is.

    Args:
        name: Its name.
        num_cpus: Logical CPUs. None: as many as there are, LEAST_CPUS at least.
        dashboard_port: Port of the dashboard. None: any.
        idle_stop_minutes: Minutes without jobs after which it ends itself. None: it stays.
        now_s: The time.

    Returns:
        The cluster, and whether this call started it.

    Raises:
        ConflictError: a cluster elsewhere has the name.
        ResourceError: Ray does not start; names the port that is taken and by what, or has the last lines of its log.
    """
    before = find_record(check_name(name))
    if before is not None and before.kind != "local":
        raise ConflictError(f"{name} is a cluster of `ray up`: choose another --name, or end it first")
    if before is not None and before.folder is not None:
        if runs(before):
            return before, False
        _ray_of(before).stop()
    token = ensure_token(name)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
    environment |= {"RAY_TRAIN_ENABLE_STATE_TRACKING": "1"}
    cpus = num_cpus if num_cpus is not None else max(LEAST_CPUS, os.cpu_count() or 1)
    ray = start_ray(num_cpus=cpus, environment=environment, outlives_us=True, dashboard_port=dashboard_port)
    addresses = {"dashboard": ray.dashboard, "address": ray.address, "folder": ray.folder}
    record = ClusterRecord(name=name, kind="local", created_s=now_s, state="up", **addresses)
    record.write()
    try:
        ray.wait_for_agent()
        RayJobs.when_ready(cluster_address(name))
        if idle_stop_minutes is not None:
            _start_idle_stop(record, environment, idle_stop_minutes)
    except BaseException:
        down(record)
        raise
    return record, True


def _start_idle_stop(record: ClusterRecord, environment: dict[str, str], minutes: int) -> None:
    assert record.folder is not None and record.dashboard is not None
    command = [sys.executable, "-m", "jobs.clusters.idle_stop", "--minutes", str(minutes)]
    command += ["--address", record.dashboard, "--folder", str(record.folder)]
    with (record.folder / "idle-stop.log").open("wb") as log:
        subprocess.Popen(
            command,
            # Marked as one of its processes, so that it ends with it.
            env={**environment, MARK: str(record.folder)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def runs(record: ClusterRecord) -> bool:
    """Whether its processes live."""
    return record.folder is not None and bool(processes_of(record.folder))


def down(record: ClusterRecord) -> None:
    """Ends its processes, and forgets it."""
    _ray_of(record).stop()
    record.forget()


def _ray_of(record: ClusterRecord) -> LocalRay:
    assert record.folder is not None
    return LocalRay(record.address or "", record.dashboard or "", record.folder)
