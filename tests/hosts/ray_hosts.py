"""A Ray cluster over test hosts: a head and two workers, which share nothing but an S3 on a host of its own."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import boto3
import pytest

from jobs.clusters.managed.cluster_endpoint import close_tunnels
from tests.hosts.network import REPOSITORY, Host, Network, network, wait_until
from tests.hosts.storage_server import PORT
from tests.s3 import AWS_VARIABLES

# Three nodes start on two cores, and others may be at work there.
UP_TIMEOUT_S = 400
WORKERS = ("anna", "bert")
# Logical: a training worker takes one or two of a host, and data one.
HEAD_CPUS, WORKER_CPUS = 0, 3
# A host that says nothing is lost after about fifteen seconds, not a minute.
SOON = {
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "5000",
    "RAY_health_check_failure_threshold": "3",
    # Until the head starts Ray again on a host that has none.
    "AUTOSCALER_HEARTBEAT_TIMEOUT_S": "30",
    "AUTOSCALER_UPDATE_INTERVAL_S": "2",
}
BUCKET = "runs"
CLUSTER = "hosts"


class RayHosts:
    """The cluster, and what a user of it has on this machine.

    Attributes:
        folder: Of this machine's own files: home, cluster file, logs.
        network: The hosts.
        data: Folder of recordings that all hosts have.
        head: The host of the head.
        workers: The hosts of the workers.
        storage: The host of the S3.
        is_up: Whether `up` has succeeded since the head was last ended.
    """

    def __init__(self, folder: Path, made: Network, data: Path):
        """Starts the hosts, and the storage; Ray does not run yet.

        Args:
            folder: Of this machine's own files.
            made: Where the hosts are to be.
            data: Folder of recordings that all hosts have.
        """
        self.folder, self.network, self.data = folder, made, data
        self.storage = made.add_host("storage", environment=AWS_VARIABLES)
        server = f"cd {REPOSITORY} && exec {sys.executable} -m tests.hosts.storage_server {self.storage.address}"
        self._server = self.storage.spawn("sh", "-c", server, log=folder / "storage.log")
        self.endpoint = f"http://{self.storage.address}:{PORT}"
        environment = {**AWS_VARIABLES, "AWS_ENDPOINT_URL": self.endpoint, "OMP_NUM_THREADS": "1"}
        self.head = made.add_host("head", environment=environment, read_only=[data])
        self.workers = [made.add_host(name, environment=environment, read_only=[data]) for name in WORKERS]
        self.is_up = False

    @property
    def nodes(self) -> list[Host]:
        """All hosts on which Ray runs."""
        return [self.head, *self.workers]

    @property
    def rayscribe_path(self) -> Path:
        """The `rayscribe` command."""
        return Path(sys.executable).with_name("rayscribe")

    @property
    def runs(self) -> str:
        """URL of the folder of all runs."""
        return f"s3://{BUCKET}/runs"

    def environment(self) -> dict[str, str]:
        """Variables of a user of the cluster on this machine."""
        return {
            "HOME": str(self.folder),
            "RAYSCRIBE_HOME": str(self.folder / ".rayscribe"),
            "AWS_ENDPOINT_URL": self.endpoint,
            **AWS_VARIABLES,
        }

    def make_bucket(self) -> None:
        """Waits for the storage."""
        wait_until(lambda: PORT in self.storage.listening(), "S3")
        boto3.session.Session().client("s3", endpoint_url=self.endpoint).create_bucket(Bucket=BUCKET)

    def kill_head(self) -> int:
        """SIGKILL for all processes of the head; Ray is up when `up` has succeeded. Gives how many there were."""
        self.is_up = False
        return self.head.kill()

    def up(self) -> str:
        """Starts Ray on all hosts, or on those on which it does not run, and waits for them; gives what was printed."""
        self.is_up = False
        command = [
            "cluster",
            "up",
            str(REPOSITORY / "cluster_configs/specs/local.yaml"),
            "--timeout",
            str(UP_TIMEOUT_S),
        ]
        pool = {"hardware": "cpu", "cpus": WORKER_CPUS, "min": len(WORKERS), "max": len(WORKERS)}
        own = {
            "name": CLUSTER,
            "pools": {"hosts": pool},
            "exports": SOON,
            "storage": self.runs,
            "ray_up.head_ip": self.head.address,
            "ray_up.worker_ips": [host.address for host in self.workers],
            "ray_up.user": "root",
            "ray_up.private_key": str(self.network.private_key),
        }
        for name, value in own.items():
            command += ["--set", f"{name}={json.dumps(value)}"]
        printed = self.rayscribe(*command)
        self.is_up = True
        return printed

    def down(self) -> str:
        """Ends Ray on all hosts; gives what was printed."""
        self.is_up = False
        return self.rayscribe("cluster", "down", CLUSTER)

    def storage_requests(self) -> list[tuple[str, str, int]]:
        """Method, path and status of every request to the storage, in the order in which they took effect."""
        lines = (self.folder / "storage.log").read_text(encoding="utf-8").splitlines()
        return [tuple(json.loads(line)) for line in lines if line.startswith("[")]

    def rayscribe(self, *command: str, folder: Path = REPOSITORY) -> str:
        """Runs a command of this machine's user, which must succeed; gives what it printed."""
        line = [str(self.rayscribe_path), *command]
        done = subprocess.run(
            line,
            cwd=folder,
            env={**os.environ, **self.environment()},
            capture_output=True,
            text=True,
            check=False,
            timeout=2 * UP_TIMEOUT_S,
        )
        assert done.returncode == 0, f"{command}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout


def printed_exports(lines: Sequence[str], home: Path) -> dict[str, str]:
    """The variables of the lines `export NAME=VALUE …` among those that a command has printed."""
    found: dict[str, str] = {}
    for line in lines:
        words = line.split()
        if words[:1] == ["export"]:
            for word in words[1:]:
                name, _, value = word.partition("=")
                found[name] = value
    return {name: value.replace("~", str(home)) for name, value in found.items()}


@contextlib.contextmanager
def ray_hosts(folder: Path, data: Path) -> Iterator[RayHosts]:
    """Hosts without Ray; `up` starts it. Its user's variables are this process's for the duration of the block."""
    with network() as made, pytest.MonkeyPatch.context() as own:
        hosts = RayHosts(folder, made, data)
        for name, value in hosts.environment().items():
            own.setenv(name, value)
        (folder / "hosts.json").write_text(json.dumps({host.name: host.init_pid for host in made.hosts.values()}))
        try:
            hosts.make_bucket()
            yield hosts
        finally:
            close_tunnels()
