"""`make demo`: starts Ray on this machine, submits the smallest recipe as a job, and follows it to its end."""

import contextlib
import os
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

RECIPE = "jobs/specs/whisper_micro.yaml"
LOGICAL_CPUS = 4
LOOPBACK = "127.0.0.1"
STOP_S = 30


def main() -> int:
    """Runs the demo; returns the job's exit code."""
    repository = Path(__file__).resolve().parents[2]
    # A new token, known to this process and to the Ray that it starts; Ray reads it when it is imported.
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    runs = repository / "runs"
    os.environ |= {"RAYSCRIBE_HOME": str(runs / ".rayscribe")}
    os.environ.pop("RAYSCRIBE_SERVICE", None)
    from jobs.cli import main as rayscribe  # noqa: PLC0415
    from jobs.clusters.ray_jobs import RayJobs  # noqa: PLC0415

    with started_ray() as dashboard:
        RayJobs.when_ready(dashboard)
        command = ["submit", RECIPE, "--set", f"run.storage_path={runs}", "--address", dashboard, "--follow"]
        print(f"dashboard: {dashboard}\n$ {shlex.join(['rayscribe', *command])}", flush=True)
        os.chdir(repository)
        return rayscribe(command)


@contextlib.contextmanager
def started_ray() -> Iterator[str]:
    """Starts a Ray head on free loopback ports, and stops it at the end of the block.

    Yields:
        URL of its dashboard.
    """
    binaries = Path(sys.executable).parent
    # The job uses the same `python` as this process.
    environment = {**os.environ, "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}", "RAY_USAGE_STATS_ENABLED": "0"}
    names = ("port", "dashboard-port", "dashboard-agent-listen-port", "ray-client-server-port")
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    command = [str(binaries / "ray"), "start", "--head", "--block", f"--num-cpus={LOGICAL_CPUS}"]
    command += [f"--node-ip-address={LOOPBACK}", f"--dashboard-host={LOOPBACK}", "--include-dashboard=true"]
    command += [f"--{name}={port}" for name, port in ports.items()]
    with tempfile.TemporaryFile() as log:
        head = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
        try:
            yield f"http://{LOOPBACK}:{ports['dashboard-port']}"
        except Exception:
            log.seek(0)
            sys.stderr.write(log.read().decode(errors="replace")[-4000:])
            raise
        finally:
            head.send_signal(signal.SIGINT)
            try:
                head.wait(STOP_S)
            except subprocess.TimeoutExpired:
                os.killpg(head.pid, signal.SIGKILL)


def free_ports(count: int) -> list[int]:
    """Finds ports that are free now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for item in sockets:
            item.bind((LOOPBACK, 0))
        return [item.getsockname()[1] for item in sockets]


if __name__ == "__main__":
    sys.exit(main())
