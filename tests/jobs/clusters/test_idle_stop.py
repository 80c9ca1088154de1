"""When a cluster without jobs ends itself."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jobs.clusters import idle_stop
from jobs.clusters.idle_stop import (
    end_former,
    terminate_machines,
    watch,
    working_jobs,
)
from jobs.clusters.managed.ray_up_content import IDLE_STOP, shell_for_head, stop_commands
from jobs.errors import ClusterError
from trainers.distributed.local_ray import MARK

LIMIT_S = 600.0


class Cluster:
    """A cluster whose jobs, by minute, are given; the last number stays. It counts the minutes that it lives."""

    def __init__(self, *working: int | None):
        self.working, self.minute = working, 0
        self.failures: list[Exception] = []

    def count(self) -> int:
        jobs = self.working[min(self.minute, len(self.working) - 1)]
        if jobs is None:
            raise ClusterError("no response")
        if jobs < 0:
            raise ValueError("no JSON")
        return jobs

    def end(self) -> None:
        if self.failures:
            raise self.failures.pop()

    def run(self) -> int:
        """Gives the minute in which it ended."""

        def sleep(seconds: float) -> None:
            self.minute += 1

        clock: Callable[[], float] = lambda: self.minute * 60.0  # noqa: E731
        watch(self.count, self.end, limit_s=LIMIT_S, clock=clock, sleep=sleep)
        return self.minute


@pytest.mark.parametrize(
    ("working", "minute"),
    [
        ((0,), 10),
        ((0, 0, 0, 1, 0), 14),
        ((2, 1, 1, 1, 0), 14),
        # While a dashboard does not respond, trainings go on: the time does not count.
        ((1, None, None, 0), 13),
        ((0, 0, 0, *[None] * 60, 0), 71),
        ((1, *[None] * 60, 1, 0), 72),
        # Nor does an error that nobody has thought of end the watch.
        ((1, -1, -1, 0), 13),
    ],
)
def test_it_ends_ten_minutes_after_its_last_job(working: tuple[int | None, ...], minute: int) -> None:
    assert Cluster(*working).run() == minute


def test_an_end_that_fails_is_tried_again() -> None:
    cluster = Cluster(0)
    cluster.failures = [ClusterError("the cloud says no"), OSError("too many open files")]
    assert cluster.run() == 12


def test_an_end_that_has_ended_the_dashboard_is_tried_again() -> None:
    cluster = Cluster(*[0] * 11, None)
    cluster.failures = [ClusterError("a worker is still there")] * 3
    assert cluster.run() == 13


def test_a_job_that_came_after_an_end_that_failed_is_waited_for() -> None:
    cluster = Cluster(*[0] * 11, 1, 1, None, 0)
    cluster.failures = [ClusterError("the cloud says no")]
    assert cluster.run() == 24


class Machines:
    """A cloud, as Ray's autoscaler sees one; what is taken away goes at the second request."""

    asked: list[list[str]] = []  # noqa: RUF012
    kinds = {"w1": "worker", "head": "head", "w2": "worker"}  # noqa: RUF012

    def __init__(self, config: dict[str, Any], name: str):
        self.left = dict(self.kinds)

    def non_terminated_nodes(self, tags: dict[str, str]) -> list[str]:
        return [name for name, kind in self.left.items() if kind == tags["ray-node-type"]]

    def terminate_nodes(self, nodes: list[str]) -> None:
        if nodes in self.asked or nodes == ["head"]:
            self.left = {name: kind for name, kind in self.left.items() if name not in nodes}
        self.asked.append(nodes)


def test_on_a_cloud_the_head_takes_its_own_machine_away_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle_stop, "TERMINATE_POLL_S", 0.0)
    provider = {"type": "external", "module": f"{__name__}.Machines"}
    terminate_machines({"cluster_name": "cloud", "provider": provider, "docker": {"container_name": "ray"}})
    assert Machines.asked == [["w1", "w2"], ["w1", "w2"], ["head"]]


def test_own_hosts_with_containers_stop_theirs_and_never_the_one_in_which_this_runs() -> None:
    provider = {"type": "local", "head_ip": "10.0.0.1", "worker_ips": ["10.0.0.2"]}
    config = {"provider": provider, "auth": {"ssh_user": "ana"}, "docker": {"container_name": "speech"}}
    worker, head = stop_commands(config)
    assert "docker stop speech" in worker[-1]
    assert "docker" not in head[-1] and "ray stop" in head[-1]


@pytest.mark.integration
def test_only_the_watch_of_the_same_cluster_is_ended(tmp_path: Path) -> None:
    one, other = (str(tmp_path / name) for name in ("one", "other"))
    command = [
        sys.executable,
        "-m",
        IDLE_STOP,
        "--minutes",
        "600",
        "--address",
        "http://127.0.0.1:9",
        "--folder",
    ]
    bystander = [sys.executable, "-c", "input()", "-m", IDLE_STOP, "--folder", one]
    watches = [
        subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for line in ([command[0], "-P", *command[1:], one], [*command, other], bystander)
    ]
    try:
        for watching in watches[:2]:
            # It looks, and has thereby ended those before it.
            assert watching.stdout is not None and b"no Ray is left here" in watching.stdout.readline()
        end_former("--folder", one)
        assert watches[0].wait(60) == -signal.SIGTERM
        assert [item.poll() for item in watches[1:]] == [None, None]
    finally:
        for item in watches:
            item.kill()
            item.communicate()


def test_what_stops_the_head_ends_its_watch_and_no_other_host_s() -> None:
    config = {"cluster_name": "hosts", "head_start_ray_commands": ["ray stop", "export A=b; ray start --head"]}
    assert shell_for_head(config)[-1] == (
        "source ~/.bashrc; (ray stop); code=$?; "
        "(export A=b; python -m rayscribe.jobs.clusters.idle_stop --minutes 0 --cluster hosts); exit $code"
    )


def test_where_no_ray_is_left_no_job_works(tmp_path: Path) -> None:
    """A head whose Ray was killed ends, too: no dashboard says so."""
    assert working_jobs("http://127.0.0.1:9", tmp_path) == 0


def test_a_control_store_that_does_not_say_how_it_is_reached_may_have_jobs(tmp_path: Path) -> None:
    control_store = tmp_path / "gcs_server"
    shutil.copy(shutil.which("sleep") or "", control_store)
    process = subprocess.Popen([control_store, "600"], env={**os.environ, MARK: str(tmp_path)})
    try:
        with pytest.raises(ClusterError, match=r"http://127\.0\.0\.1:9: "):
            working_jobs("http://127.0.0.1:9", tmp_path)
    finally:
        process.kill()
        process.wait()


LISTEN = (
    "import socket, time; server = socket.create_server(('127.0.0.1', 0)); print(server.getsockname()[1], flush=True)"
)


def test_only_a_control_store_of_this_host_gets_the_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    control_store = tmp_path / "gcs_server"
    control_store.symlink_to(sys.executable)
    asked: list[str] = []

    def answer(command: list[str]) -> str:
        asked.append(command[-1])
        return "3"

    monkeypatch.setattr(idle_stop, "_run", answer)
    with contextlib.ExitStack() as started, socket.create_server(("127.0.0.1", 0)) as other:

        def start(*command: str | Path) -> subprocess.Popen[str]:
            environment = {**os.environ, MARK: str(tmp_path)}
            process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
            started.callback(process.wait)
            started.callback(process.kill)
            return process

        listening = start(control_store, "-c", f"{LISTEN}; time.sleep(600)").stdout
        assert listening is not None
        port = int(listening.readline())
        # Nodes of this Ray, of one whose head is another host, and of one of which nothing but a port is here.
        for address in (f"127.0.0.1:{port}", f"192.0.2.77:{port}", f"127.0.0.1:{other.getsockname()[1]}"):
            start(sys.executable, "-c", "import time; time.sleep(600)", f"--gcs-address={address}")
        assert working_jobs("http://127.0.0.1:9", tmp_path) == 3
    assert asked == [f"127.0.0.1:{port}"]
