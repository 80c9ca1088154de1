"""Ends a cluster that has had no job for a while; it runs on the head. Ray's own idle time-out spares the head.

On a cloud the machines go too: the head calls `ray down` with the file that `ray up` left on it. Own hosts stay,
without a Ray. A Ray of one machine is ended by its processes.
"""

import argparse
import contextlib
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import yaml

from jobs.errors import ClusterError
from trainers.distributed.local_ray import stop_ray

POLL_S = 15.0
# What `ray up` leaves on the head.
CONFIG = Path("~/ray_bootstrap_config.yaml")
# Who watches here; written by one that is started later, which ends this one.
PID_FILE = "~/.rayscribe-idle-stop.pid"
KEY = Path("~/ray_bootstrap_key.pem")
TIMEOUT_S = 600.0


class IdleClock:
    """How long a cluster has been without jobs."""

    def __init__(self, now_s: float):
        """Starts as one that has just had a job."""
        self._busy_s = now_s

    def idle_s(self, working: int | None, now_s: float) -> float:
        """Seconds since a job was last seen.

        Args:
            working: How many jobs work now. None: the dashboard does not respond, and nobody can submit one.
            now_s: The time.
        """
        if working:
            self._busy_s = now_s
        return now_s - self._busy_s


def watch(
    count: Callable[[], int],
    end: Callable[[], None],
    *,
    limit_s: float,
    poll_s: float = POLL_S,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Waits until the cluster was idle for long enough, and ends it; repeats where that fails.

    Args:
        count: How many jobs work; raises ClusterError.
        end: Ends the cluster; raises ClusterError.
        limit_s: How long it may be idle. Seconds.
        poll_s: Between two looks. Seconds.
        clock: Seconds of a clock that only goes forward.
        sleep: Waits.
    """
    idle = IdleClock(clock())
    while True:
        working: int | None = None
        try:
            working = count()
        except ClusterError as error:
            print(f"the jobs are not known: {error}", flush=True)
        if idle.idle_s(working, clock()) >= limit_s:
            try:
                print(f"no job for {limit_s / 60:.0f} minutes: the cluster ends", flush=True)
                end()
                return
            except ClusterError as error:
                print(f"{error}; it is tried again", flush=True)
        sleep(poll_s)


def end_cluster() -> None:
    """Ends the cluster of `ray up` on whose head this runs.

    Raises:
        ClusterError: a command failed.
    """
    path = CONFIG.expanduser()
    try:
        config: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise ClusterError(f"{path} cannot be read: {error}") from error
    if config["provider"]["type"] == "local":
        for command in stop_commands(config):
            _run(command)
    else:
        _run([*_ray(), "down", str(path), "--yes"])


def stop_commands(config: dict[str, Any]) -> list[list[str]]:
    """The commands that stop Ray on own hosts, the head's last. Pure."""
    stop = next((line for line in config.get("head_start_ray_commands") or [] if "ray stop" in line), "ray stop")
    auth = config["auth"]
    options = ["-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"]
    ssh = ["ssh", *options, "-o", "ConnectTimeout=20", "-i", str(KEY.expanduser())]
    hosts = config["provider"].get("worker_ips") or []
    return [*([*ssh, f"{auth['ssh_user']}@{host}", shlex.join(shell_for(stop))] for host in hosts), login_shell(stop)]


def login_shell(command: str) -> list[str]:
    """A shell with the variables of `ray up`'s own."""
    return ["bash", "--login", "-c", "-i", f"source ~/.bashrc; {command}"]


def shell_for(stop: str) -> list[str]:
    """The shell that stops Ray on a host, as `ray up` runs its commands; an idle stop that waits there ends too."""
    watch = f"if [ -f {PID_FILE} ]; then kill $(cat {PID_FILE}); rm -f {PID_FILE}; fi"
    return login_shell(f"({stop}); code=$?; {watch}; exit $code")


def _ray() -> list[str]:
    return [sys.executable, "-P", "-m", "ray.scripts.scripts"]


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ClusterError(f"{command[0]} … failed: {error}") from error
    if done.returncode != 0:
        raise ClusterError(f"{' '.join(command)[:200]} failed ({done.returncode}): {done.stderr[-500:]}")


def replace_former(path: Path) -> None:
    """Ends the one that an earlier start of this head has left, which counts other minutes."""
    with contextlib.suppress(OSError, ValueError, psutil.Error):
        former = psutil.Process(int(path.read_text(encoding="utf-8")))
        if "jobs.clusters.idle_stop" in former.cmdline():
            former.terminate()
    path.write_text(str(os.getpid()), encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Watches until the cluster has ended."""
    parser = argparse.ArgumentParser(prog="python -m jobs.clusters.idle_stop", description=__doc__)
    parser.add_argument("--minutes", type=float, required=True, help="minutes without jobs")
    parser.add_argument("--address", default="http://127.0.0.1:8265", help="URL of the dashboard")
    parser.add_argument("--folder", type=Path, help="temporary folder of a Ray of this machine alone")
    given = parser.parse_args(arguments)
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    # Only now: it reads the environment.
    from jobs.clusters.ray_jobs import RayJobs  # noqa: PLC0415

    def end() -> None:
        if given.folder is None:
            end_cluster()
        else:
            stop_ray(given.folder)

    if given.folder is None:
        replace_former(Path(PID_FILE).expanduser())
    watch(lambda: len(RayJobs(given.address).working_jobs()), end, limit_s=given.minutes * 60)
    return 0


if __name__ == "__main__":
    sys.exit(main())
