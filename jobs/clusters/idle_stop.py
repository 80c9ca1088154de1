"""Ends a cluster after a time without jobs; runs on the head. Ray's own idle timeout does not end the head.

On a cloud, terminates all machines, the head last, by Ray's own node provider and the file that `ray up` left on the
head; `ray down` would first stop the container in which this module runs. On own hosts, stops Ray; the hosts keep
running. For a local Ray, ends its processes.
"""

import argparse
import contextlib
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import yaml

from jobs.clusters.managed.ray_up_content import IDLE_STOP, login_shell, on_own_hosts, stop_commands, stop_line
from jobs.errors import ClusterError
from trainers.config.wording import counted
from trainers.distributed.local_ray import gcs_addresses_of, has_control_store, is_own_host, processes_of, stop_ray

POLL_S = 15.0
TERMINATE_POLL_S = 5.0
# `ray up` leaves this file on the head.
CONFIG = Path("~/ray_bootstrap_config.yaml")
TIMEOUT_S = 600.0
ASK = f"import sys; from {__package__}.ray_private import jobs_in_control_store as ask; print(len(ask(sys.argv[1])))"


def watch(
    count: Callable[[], int],
    end: Callable[[], None],
    *,
    limit_s: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Waits until the cluster has been idle for `limit_s` seconds, then ends it; continues after any error."""
    idle_s, ending = 0.0, False
    seen_s: float | None = None
    while True:
        working: int | None = None
        try:
            working = count()
        except Exception as error:  # whatever the error is, unused machines must not stay
            print(f"the jobs are not known: {type(error).__name__}: {error}", flush=True)
        now_s = clock()
        # Time during which the number of jobs is unknown does not count as idle, since jobs may be running.
        idle_s = 0.0 if working else idle_s + (now_s - seen_s if working == 0 and seen_s is not None else 0.0)
        seen_s = now_s if working == 0 else None
        # Once decided, ending is retried even if the number is unknown: the last try may have ended the dashboard.
        ending = not working and (ending or (working == 0 and idle_s >= limit_s))
        if ending:
            try:
                print(f"no job for {counted(limit_s / 60, 'minute')}: the cluster ends", flush=True)
                end()
                return
            except Exception as error:  # as above
                print(f"{type(error).__name__}: {error}; retrying", flush=True)
        sleep(POLL_S)


def working_jobs(address: str, folder: Path | None) -> int:
    """Returns the number of jobs that run on this host's Ray, even if its dashboard has died or hangs.

    If the dashboard does not respond, reads the jobs of each Ray on the host from its control store. Returns 0 if no
    Ray is left. With the `folder` of a local Ray, considers only that Ray, otherwise all processes of this user.

    Raises:
        ClusterError: neither the dashboard nor a control store responds.
    """
    # Imported here, since it reads the environment.
    from jobs.clusters.ray_jobs import RayJobs  # noqa: PLC0415

    try:
        return len(RayJobs(address).working_jobs())
    except ClusterError as error:
        processes = processes_of(folder) if folder is not None else own_processes()
        if not has_control_store(processes):
            print(f"{error}; no Ray is left here", flush=True)
            return 0
        addresses = control_stores_of(processes)
        if not addresses:
            raise
        # In a separate process, since Ray aborts a process without a token.
        working = sum(int(_run([sys.executable, "-c", ASK, one]).split()[-1]) for one in sorted(addresses))
        print(f"{error}; its control store has {counted(working, 'job')} at work", flush=True)
        return working


def control_stores_of(processes: Sequence[psutil.Process]) -> set[str]:
    """Returns the addresses for drivers of each Ray whose control store is one of these processes.

    Excludes Rays of other hosts, which may have a node here and must not get the token.
    """
    ports: set[str] = set()
    for process in processes:
        with contextlib.suppress(psutil.Error):
            if has_control_store([process]):
                listening = (one for one in process.net_connections("tcp") if one.status == psutil.CONN_LISTEN)
                ports.update(str(one.laddr.port) for one in listening)
    joined = {address: address.rpartition(":") for address in gcs_addresses_of(processes)}
    return {address for address, (host, _, port) in joined.items() if port in ports and is_own_host(host.strip("[]"))}


def own_processes() -> list[psutil.Process]:
    """Returns this user's processes on this host; processes of other users must not get the token."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.uids().real == os.getuid():
                found.append(process)
    return found


def end_cluster() -> None:
    """Ends the cluster of `ray up` on whose head this runs; raises ClusterError if a command fails."""
    path = CONFIG.expanduser()
    try:
        config: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise ClusterError(f"{path} cannot be read: {error}") from error
    if on_own_hosts(config):
        for command in stop_commands(config):
            _run(command)
    else:
        # Ray's autoscaler would replace terminated workers.
        _run(login_shell(stop_line(config)))
        terminate_machines(config)


def terminate_machines(config: dict[str, Any]) -> None:
    """Terminates all machines of a cloud, this one last; raises ClusterError if workers remain."""
    # Imported here, since it takes seconds.
    from ray.autoscaler.tags import NODE_KIND_HEAD, NODE_KIND_WORKER, TAG_RAY_NODE_KIND  # noqa: PLC0415

    from jobs.clusters.ray_private import node_provider  # noqa: PLC0415

    cloud = node_provider(config["provider"], config["cluster_name"])
    end = time.monotonic() + TIMEOUT_S
    while workers := cloud.non_terminated_nodes({TAG_RAY_NODE_KIND: NODE_KIND_WORKER}):
        if time.monotonic() > end:
            raise ClusterError(f"workers still exist after {TIMEOUT_S:.0f} s: {', '.join(workers)}")
        cloud.terminate_nodes(workers)
        time.sleep(TERMINATE_POLL_S)
    cloud.terminate_nodes(cloud.non_terminated_nodes({TAG_RAY_NODE_KIND: NODE_KIND_HEAD}))


def _run(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ClusterError(f"{command[0]} … failed: {error}") from error
    if done.returncode != 0:
        raise ClusterError(f"{' '.join(command)[:200]} failed ({done.returncode}): {done.stderr[-500:]}")
    return done.stdout


def end_former(option: str, value: str) -> None:
    """Ends this user's other idle watches of the same cluster on this host, found by their command lines."""
    for process in own_processes():
        # The process may have ended meanwhile.
        with contextlib.suppress(psutil.Error):
            if process.pid == os.getpid():
                continue
            command = process.cmdline()
            if ["-m", IDLE_STOP] in (command[1:3], command[2:4]) and (option, value) in itertools.pairwise(command):
                process.terminate()


def main(arguments: Sequence[str] | None = None) -> int:
    """Watches until the cluster has ended."""
    parser = argparse.ArgumentParser(prog=f"python -m {IDLE_STOP}", description=__doc__)
    parser.add_argument("--minutes", type=float, required=True, help="minutes without jobs; 0: only end a watch")
    parser.add_argument("--cluster", default="", help="name of the cluster of `ray up` whose head this is")
    parser.add_argument("--address", default="http://127.0.0.1:8265", help="URL of the dashboard")
    parser.add_argument("--folder", type=Path, help="temporary folder of a local Ray")
    given = parser.parse_args(arguments)
    end_former(*(("--cluster", given.cluster) if given.folder is None else ("--folder", str(given.folder))))
    if given.minutes == 0:
        return 0
    os.environ.setdefault("RAY_AUTH_MODE", "token")

    end: Callable[[], None] = end_cluster if given.folder is None else partial(stop_ray, given.folder)
    watch(lambda: working_jobs(given.address, given.folder), end, limit_s=given.minutes * 60)
    return 0


if __name__ == "__main__":
    sys.exit(main())
