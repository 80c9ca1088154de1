"""Local clusters, for first steps, started by `ray start`."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from jobs.addresses import cluster_address
from jobs.clusters.managed.cluster_record import (
    DASHBOARD_PORT,
    LocalRecord,
    RayUpRecord,
    ensure_token,
    find_record,
    lock_cluster,
    was_taken_down,
)
from jobs.clusters.managed.ray_up_content import IDLE_STOP
from jobs.clusters.ray_jobs import RayJobs
from jobs.errors import ConflictError
from runtime_env.own_code import RELEASE
from trainers.distributed.local_ray import MARK, LocalRay, start_ray, without_ray_settings
from trainers.distributed.machine import this_machine

# Enough for two workers and Ray Data, as recipes request; on a machine with fewer cores, they share them.
LEAST_CPUS = 4


def up(
    name: str,
    *,
    num_cpus: int | None,
    dashboard_port: int | None,
    idle_stop_minutes: int | None,
    say: Callable[[str], None],
    outlives_us: bool = True,
) -> tuple[LocalRecord, bool]:
    """Starts Ray unless it runs; returns its record, and True if this call started it.

    With `outlives_us`, Ray keeps running after this process has ended. Default of `num_cpus` are the machine's logical
    CPUs, at least LEAST_CPUS; default of `dashboard_port` is Ray's default if that is free, otherwise any free port.

    Raises:
        ClusterError: another machine that shares this home folder has started a cluster of this name.
        ConflictError: a cluster of `ray up` has the name, or another command starts or ends the cluster.
        ResourceError: Ray does not start; the message has the used port and its user, or the last lines of Ray's log.
    """
    with lock_cluster(name):
        before = find_record(name)
        if isinstance(before, RayUpRecord):
            raise ConflictError(f"{name} is a cluster of `ray up`: choose another --name, or end it first")
        if before is not None and before.folder is not None:
            if before.state == "up" and before.ray_lives():
                return _with_idle_stop(before, idle_stop_minutes), False
            down(before, say=lambda line: None)
        say(f"starting Ray for {name}")
        new = LocalRecord(name=name, created_s=time.time(), machine=this_machine(), release=RELEASE)
        record = _start(new, num_cpus, dashboard_port, outlives_us)
        return _with_idle_stop(record, idle_stop_minutes), True


def down(record: LocalRecord, *, say: Callable[[str], None]) -> None:
    """Ends the processes of a local Ray, and removes its record; raises ClusterError if it is on another machine."""
    record.check_machine()
    say(f"ending {record.name}")
    _ray_of(record).stop()
    record.forget(taken_down=True)


def _start(record: LocalRecord, num_cpus: int | None, dashboard_port: int | None, outlives_us: bool) -> LocalRecord:
    """Starts Ray, and waits until it accepts jobs; ends it and removes its record after an error."""
    cpus = num_cpus if num_cpus is not None else max(LEAST_CPUS, os.cpu_count() or 1)
    taken_down = was_taken_down(record.name)

    def remember(folder: Path) -> None:
        # Written before the first process starts, so that leftovers can be found and ended.
        record.model_copy(update={"folder": folder}).write()

    try:
        ray = start_ray(
            num_cpus=cpus,
            environment=_environment(record.name),
            outlives_us=outlives_us,
            dashboard_port=dashboard_port,
            # Ray's own commands look for the dashboard there.
            usual_dashboard_port=DASHBOARD_PORT,
            announce=remember,
        )
        addresses = {"dashboard": ray.dashboard, "address": ray.address, "folder": ray.folder, "state": "up"}
        record = record.model_copy(update=addresses)
        record.write()
        ray.wait_for_agent()
        RayJobs.when_ready(cluster_address(record.name))
    except BaseException:
        if record.folder is not None:
            _ray_of(record).stop()
        record.forget(taken_down=taken_down)
        raise
    return record


def _environment(name: str) -> dict[str, str]:
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(ensure_token(name))}
    return {**without_ray_settings(), **token, "RAY_TRAIN_ENABLE_STATE_TRACKING": "1"}


def _with_idle_stop(record: LocalRecord, minutes: int | None) -> LocalRecord:
    """Starts an idle watch, which ends any earlier one; if `minutes` is None, changes nothing."""
    if minutes is None:
        return record
    assert record.folder is not None and record.dashboard is not None
    command = [sys.executable, "-P", "-m", IDLE_STOP, "--minutes", str(minutes)]
    command += ["--address", record.dashboard, "--folder", str(record.folder)]
    with (record.folder / "idle-stop.log").open("wb") as log:
        subprocess.Popen(
            command,
            # Marked as a process of this Ray, so that it ends together with Ray.
            env={**_environment(record.name), MARK: str(record.folder)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    record = record.model_copy(update={"idle_stop_minutes": minutes})
    record.write()
    return record


def _ray_of(record: LocalRecord) -> LocalRay:
    assert record.folder is not None
    return LocalRay(record.address or "", record.dashboard or "", record.folder)
