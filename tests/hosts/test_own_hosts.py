"""Own hosts from nothing to a trained model, with the commands of the documentation, and down again."""

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from jobs.clusters.managed.cluster_endpoint import close_tunnels
from tests.hosts.network import wait_until
from tests.hosts.ray_hosts import CLUSTER, RayHosts, printed_exports
from tests.hosts.runs import CALM, check_same, submitted, write_tree
from tests.integration.controller_driver import TIMEOUT_S

SSH = {22}


@pytest.fixture
def tree(hosts: RayHosts, tmp_path: Path) -> Path:
    return write_tree(hosts, tmp_path / "tree")


@contextmanager
def dashboard(hosts: RayHosts) -> Iterator[dict[str, str]]:
    """The variables for Ray's own commands that `cluster dashboard` prints while it forwards the port."""
    command = [str(hosts.rayscribe_path), "cluster", "dashboard", CLUSTER]
    environment = {**os.environ, **hosts.environment(), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as forward:
        assert forward.stdout is not None
        try:
            lines = []
            for line in forward.stdout:
                lines.append(line)
                if "RAY_AUTH_TOKEN_PATH=" in line:
                    break
            yield printed_exports(lines, hosts.folder)
        finally:
            forward.send_signal(signal.SIGINT)
            assert forward.wait() == 0


def test_up_again_changes_nothing(hosts: RayHosts) -> None:
    before = {host.name: {process.pid for process in host.named("raylet")} for host in hosts.nodes}
    hosts.up()
    assert {host.name: {process.pid for process in host.named("raylet")} for host in hosts.nodes} == before
    status = json.loads(hosts.rayscribe("cluster", "status", "--json"))
    assert [(item["name"], item["state"], item["nodes"]) for item in status] == [(CLUSTER, "up", 3)]
    assert hosts.rayscribe("cluster", "ssh", CLUSTER, "--", "hostname") == f"{hosts.head.name}\n"


def test_plain_ray_job_submit_trains_as_rayscribe_submit_does(hosts: RayHosts, calm: str, tree: Path) -> None:
    assert calm == CALM
    entrypoint = submitted("plain-job", hosts)
    with dashboard(hosts) as variables:
        command = [sys.executable, "-m", "ray.scripts.scripts", "job", "submit"]
        command += ["--working-dir", str(tree), "--", *shlex.split(entrypoint)]
        environment = {**os.environ, **hosts.environment(), **variables}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    check_same(hosts, "plain-job", CALM)


def test_down_leaves_no_process_and_no_socket(hosts: RayHosts) -> None:
    assert all(host.listening() > SSH for host in hosts.nodes)
    # A service of tests before this one holds a connection from here; its `cat` is the head's.
    close_tunnels()
    wait_until(lambda: not any(process.name() == "cat" for process in hosts.head.processes()), "end of the tunnel")
    hosts.down()
    assert {host.name: [process.name() for process in host.processes()] for host in hosts.nodes} == {
        host.name: [] for host in hosts.nodes
    }
    assert [host.listening() for host in hosts.nodes] == [SSH] * 3
    assert hosts.rayscribe("cluster", "status", "--json").strip() == "[]"
