"""A Ray head in processes of its own, whose environment and Python the test decides."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests
from ray.job_submission import JobStatus, JobSubmissionClient

from trainers.distributed.local_ray import free_ports

LOOPBACK = "127.0.0.1"
DEADLINE_S = 240.0
POLL_S = 0.1


@dataclass(frozen=True)
class JobEnd:
    """How a job ended.

    Attributes:
        status: Ray's.
        message: Ray's.
        exit_code: The entrypoint's. None: it had none.
        logs: What the entrypoint printed.
        shown: Everything that the Jobs API tells of the job.
    """

    status: JobStatus
    message: str
    exit_code: int | None
    logs: str
    shown: str


@dataclass(frozen=True)
class RayNode:
    """A running head.

    Attributes:
        address: URL of its dashboard.
        client: Its Jobs API.
        environment: What was added to its environment.
        home: HOME of its processes.
        session: The folder of its session: logs, runtime environments.
    """

    address: str
    client: JobSubmissionClient
    environment: Mapping[str, str]
    home: Path
    session: Path

    def run(self, entrypoint: str, runtime_env: Mapping[str, Any]) -> JobEnd:
        """Runs a job to its end."""
        return self.end_of(self.client.submit_job(entrypoint=entrypoint, runtime_env=dict(runtime_env)))

    def end_of(self, submission_id: str) -> JobEnd:
        """Waits for a job's end."""
        wait_for(lambda: self.client.get_job_status(submission_id).is_terminal(), f"the end of {submission_id}")
        info = self.client.get_job_info(submission_id)
        logs = self.client.get_job_logs(submission_id)
        return JobEnd(info.status, info.message or "", info.driver_exit_code, logs, repr(info))


@contextlib.contextmanager
def ray_node(python: Path, environment: Mapping[str, str], *, num_cpus: int = 4) -> Iterator[RayNode]:
    """Starts a head with ports, temporary folder and HOME of its own; ends it with the block.

    Args:
        python: The interpreter that it, and the jobs on it, run in.
        environment: Added to this process's environment.
        num_cpus: Logical CPUs.
    """
    # Ray's sockets lie in its temporary folder, and a socket's path may have 107 bytes only.
    folder = Path(tempfile.mkdtemp(prefix="rs-", dir="/tmp"))
    home = folder / "home"
    home.mkdir()
    ports = dict(
        zip(
            ("port", "dashboard-port", "dashboard-agent-listen-port", "ray-client-server-port"),
            free_ports(4),
            strict=True,
        )
    )
    command = [str(python), "-m", "ray.scripts.scripts", "start", "--head", "--block", f"--num-cpus={num_cpus}"]
    command += [f"--node-ip-address={LOOPBACK}", f"--dashboard-host={LOOPBACK}", "--include-dashboard=true"]
    command += [f"--temp-dir={folder / 'ray'}", *(f"--{name}={port}" for name, port in ports.items())]
    whole = {
        **os.environ,
        "HOME": str(home),
        "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
        "RAY_USAGE_STATS_ENABLED": "0",
        **environment,
    }
    log = folder / "start.log"
    with log.open("wb") as output:
        head = subprocess.Popen(command, env=whole, stdout=output, stderr=output, start_new_session=True)
    try:
        address = f"http://{LOOPBACK}:{ports['dashboard-port']}"
        client = wait_for(lambda: connected(address), "a Jobs API", log)
        yield RayNode(address, client, environment, home, (folder / "ray" / "session_latest").resolve())
    finally:
        head.send_signal(signal.SIGINT)
        try:
            head.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(head.pid, signal.SIGKILL)
            head.wait()
        shutil.rmtree(folder, ignore_errors=True)


def connected(address: str) -> JobSubmissionClient | None:
    """A client, once a job can be submitted."""
    try:
        client = JobSubmissionClient(address)
        client.submit_job(entrypoint="true")
    except (ConnectionError, RuntimeError, requests.RequestException):
        return None
    return client


def thin_python(folder: Path) -> Path:
    """A virtual environment that sees what this process's has, but is small, since Ray copies a node's whole one."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = sysconfig.get_path("purelib")
    line = f"import site; site.addsitedir({packages!r})\n"
    (folder / "lib" / version / "site-packages" / "node.pth").write_text(line, encoding="utf-8")
    return folder / "bin" / "python"


def wait_for(condition: Callable[[], Any], what: str, log: Path | None = None) -> Any:
    """Waits until a condition gives something true, and returns it."""
    end = time.monotonic() + DEADLINE_S
    while not (value := condition()):
        said = log.read_text(errors="replace")[-4000:] if log else ""
        assert time.monotonic() < end, f"no {what} in {DEADLINE_S} s\n{said}"
        time.sleep(POLL_S)
    return value
