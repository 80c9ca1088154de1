"""Ports, processes and parents of Rays of this machine."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests

from tests.processes import has_ended, wait_until_ended
from tests.trainers.synthetic import config
from trainers.distributed import local_ray
from trainers.distributed.local_ray import (
    MARK,
    free_ports,
    gcs_address_at,
    held_ports,
    holder_of,
    is_own_host,
    processes_of,
    start_ray,
    stop_ray,
)
from trainers.distributed.ray_connection import connected
from trainers.errors import DataError, Interruption, ResourceError, StoppedError

SLEEP = [sys.executable, "-c", "print(flush=True); import time; time.sleep(600)"]


def test_a_taken_port_is_refused_with_its_holder_s_process() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(
            ResourceError, match=rf"port {port} is taken by process {os.getpid()} \(.*\): choose"
        ) as error:
            start_ray(num_cpus=1, environment=os.environ, dashboard_port=port)
        assert holder_of(port) in str(error.value)


def test_what_fails_while_it_starts_ends_it_and_leaves_nothing() -> None:
    folders: list[Path] = []

    def fail() -> None:
        assert processes_of(folders[0])
        raise DataError("no such data")

    with pytest.raises(DataError, match="no such data"):
        start_ray(num_cpus=1, environment=os.environ, announce=folders.append, meanwhile=fail)
    assert len(folders) == 1
    assert not folders[0].exists()
    assert not processes_of(folders[0])


def test_free_ports_differ_and_nobody_listens_there() -> None:
    ports = free_ports(9)
    assert len(set(ports)) == 9
    for port in ports:
        socket.create_server(("127.0.0.1", port)).close()


def test_a_port_that_is_held_is_taken_by_no_other_search_and_is_there_for_a_server_of_ray_s() -> None:
    held = held_ports(3)
    try:
        for port in held:
            with socket.socket() as other, pytest.raises(OSError):
                other.bind(("127.0.0.1", port))
            # As gRPC and aiohttp do.
            with socket.socket() as server:
                server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                server.bind(("127.0.0.1", port))
                server.listen()
    finally:
        for holder in held.values():
            holder.close()


def test_a_raylet_that_gave_up_on_a_loaded_machine_is_started_again_and_the_reason_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tried: list[tuple[Path, Mapping[str, int]]] = []

    def launch(folder: Path, ports: Mapping[str, int], *given: object, **options: object) -> subprocess.Popen[bytes]:
        tried.append((folder, ports))
        logs = folder / "ray" / "session_latest" / "logs"
        logs.mkdir(parents=True)
        if len(tried) == 1:
            (logs / "raylet.err").write_text(
                "x.cc:1: Check failed: Timed out waiting for file /a/metrics_agent_port_1\n"
            )
        return subprocess.Popen(SLEEP, start_new_session=True, env={MARK: str(folder)})

    monkeypatch.setattr(local_ray, "_launch", launch)
    monkeypatch.setattr(local_ray, "_is_free", lambda port: len(tried) == 1)
    ray = start_ray(num_cpus=1, environment={})
    (first, its_ports), (second, ports) = tried
    ray.stop()
    assert ray.folder == second and not first.exists() and not processes_of(first)
    assert set(its_ports.values()).isdisjoint(ports.values())
    assert "trying again with other ports: its raylet gave up, perhaps because" in capsys.readouterr().err


def test_a_raylet_knows_the_ports_of_its_agents_before_they_listen(tmp_path: Path) -> None:
    session = tmp_path / "ray" / "session_latest"
    session.mkdir(parents=True)
    (session / "gcs_server_port_0a1b").write_text("1")
    ports = dict(zip(local_ray.PORTS, range(20_000, 20_009), strict=True))
    local_ray._write_port_files(tmp_path, ports)
    names = ("dashboard_agent_listen", "metrics_agent", "metrics_export", "runtime_env_agent")
    written = [(session / f"{name}_port_0a1b").read_text() for name in names]
    options = (
        "dashboard-agent-listen-port",
        "dashboard-agent-grpc-port",
        "metrics-export-port",
        "runtime-env-agent-port",
    )
    assert written == [str(ports[option]) for option in options]
    assert len([*session.iterdir()]) == 5


def test_the_usual_port_of_a_dashboard_is_taken_where_it_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[int] = []

    def launch(folder: Path, ports: Mapping[str, int], *given: object, **options: object) -> None:
        tried.append(ports["dashboard-port"])

    monkeypatch.setattr(local_ray, "_launch", launch)
    (usual,) = free_ports(1)
    monkeypatch.setattr(local_ray, "_comes_up", lambda *given: True)
    ray = start_ray(num_cpus=1, environment={}, usual_dashboard_port=usual)
    assert ray.dashboard == f"http://127.0.0.1:{usual}"
    ray.stop()
    with socket.create_server(("127.0.0.1", usual)):
        ray = start_ray(num_cpus=1, environment={}, usual_dashboard_port=usual)
        assert ray.dashboard != f"http://127.0.0.1:{usual}"
        ray.stop()
    # Another program is faster, between our look and Ray's start.
    other = socket.socket()
    monkeypatch.setattr(local_ray, "_reason", lambda *given: f"{usual} is taken by somebody")

    def comes_up(process: object, folder: Path, ports: Mapping[str, int]) -> bool:
        if ports["dashboard-port"] != usual:
            return True
        other.bind(("127.0.0.1", usual))
        other.listen()
        return False

    monkeypatch.setattr(local_ray, "_comes_up", comes_up)
    tried.clear()
    with other:
        start_ray(num_cpus=1, environment={}, usual_dashboard_port=usual).stop()
    assert tried[0] == usual != tried[1] and len(tried) == 2


@pytest.mark.parametrize("given", ["no_proxy", "NO_PROXY", ""])
def test_a_dashboard_is_asked_past_the_user_s_proxy_from_within(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[dict[str, str]] = []
    monkeypatch.setattr("subprocess.Popen", lambda command, env, **options: started.append(env))
    monkeypatch.setattr(local_ray, "_comes_up", lambda *given: True)
    proxy = {"http_proxy": "http://proxy:3128", **({given: "corp.example"} if given else {})}
    ray = start_ray(num_cpus=1, environment=proxy)
    ray.stop()
    (variables,) = started
    with monkeypatch.context() as inside:
        for name in ("no_proxy", "NO_PROXY", "http_proxy"):
            inside.setenv(name, variables[name])
        assert requests.utils.get_environ_proxies(ray.dashboard) == {}
        assert requests.utils.get_environ_proxies("http://elsewhere")["http"] == "http://proxy:3128"
        assert (requests.utils.get_environ_proxies("http://corp.example") == {}) == bool(given)


def test_a_user_who_wants_no_proxy_at_all_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[dict[str, str]] = []
    monkeypatch.setattr("subprocess.Popen", lambda command, env, **options: started.append(env))
    monkeypatch.setattr(local_ray, "_comes_up", lambda *given: True)
    start_ray(num_cpus=1, environment={"NO_PROXY": "*"}).stop()
    assert started[0]["no_proxy"] == started[0]["NO_PROXY"] == "*"


def test_what_ray_opens_to_all_users_lies_in_a_folder_that_only_the_owner_can_enter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[list[str]] = []
    folders: list[Path] = []

    def start(command: list[str], cwd: Path, **options: Any) -> None:
        started.append(command)
        folders.append(cwd)

    monkeypatch.setattr("subprocess.Popen", start)
    monkeypatch.setattr(local_ray, "_comes_up", lambda *given: True)
    ray = start_ray(num_cpus=1, environment={})
    try:
        (opened,) = (Path(word.partition("=")[2]) for word in started[0] if word.startswith("--temp-dir="))
        assert opened.parent == ray.folder
        assert ray.folder.stat().st_mode & 0o777 == 0o700
        # Where Python looks for the modules that Ray starts.
        assert folders == [ray.folder]
        longest = f"{opened}/session_2026-11-20_12-00-00_123456_{2**22}/sockets/plasma_store.123456"
        assert len(longest) <= 107, "of a socket"
    finally:
        ray.stop()


def test_all_and_only_the_processes_of_a_folder_are_ended(tmp_path: Path) -> None:
    mine, other = (
        subprocess.Popen(SLEEP, env={**os.environ, MARK: str(tmp_path / name)}, stdout=subprocess.PIPE)
        for name in ("mine", "other")
    )
    try:
        for process in (mine, other):
            assert process.stdout is not None and process.stdout.readline()
        stop_ray(tmp_path / "mine")
        mine.wait(10)
        assert other.poll() is None
    finally:
        for process in (mine, other):
            process.kill()
            process.communicate()


LEADER = """
import os, subprocess, sys
# Starts an agent that has no variables of ours, and ends: the agent is then nobody's child.
raylet = "import subprocess, sys; print(subprocess.Popen(sys.argv[1:], env={}).pid, flush=True)"
subprocess.run([sys.executable, "-c", raylet, sys.executable, "-c", "import time; time.sleep(600)"], check=True)
print("alone", flush=True)
input()
"""


def test_an_agent_whose_raylet_has_ended_is_still_of_its_ray(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LEADER]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env={**os.environ, MARK: str(tmp_path)}, start_new_session=True, **pipes) as leader:
        assert leader.stdout is not None
        agent = psutil.Process(int(leader.stdout.readline()))
        assert leader.stdout.readline() == b"alone\n"
        try:
            assert {process.pid for process in processes_of(tmp_path)} == {leader.pid, agent.pid}
            stop_ray(tmp_path)
            assert has_ended(agent.pid)
        finally:
            with contextlib.suppress(psutil.Error):
                agent.kill()


def test_a_command_ends_with_the_process_that_started_it() -> None:
    starter = (
        "import os, subprocess, sys\n"
        f"child = subprocess.Popen([sys.executable, '-P', {local_ray.__file__!r}, str(os.getpid()), *{SLEEP!r}],\n"
        "    stdout=subprocess.PIPE)\n"
        "child.stdout.readline()\n"
        "print(child.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", starter], capture_output=True, text=True, timeout=60, check=False)
    wait_until_ended(int(done.stdout))


def test_a_port_that_is_no_dashboard_of_this_host_leads_to_no_ray() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert gcs_address_at(server.getsockname()[1]) is None
    assert is_own_host("localhost")
    assert is_own_host("127.0.0.1")
    assert not is_own_host("192.0.2.77")
    assert not is_own_host("no-such-host.invalid")


@pytest.mark.parametrize("address", ["http://192.0.2.77:8265", "http://127.0.0.1:9"])
def test_training_on_a_dashboard_elsewhere_points_to_submit(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    with (
        pytest.raises(
            ResourceError, match=rf"{address} is not the dashboard .* \(rayscribe submit RECIPE --address {address}"
        ),
        connected(config({})),
    ):
        pass


def test_a_process_that_a_ray_has_left_is_no_ray(tmp_path: Path) -> None:
    control_store = tmp_path / "gcs_server"
    shutil.copy(shutil.which("sleep") or "", control_store)
    environment = {**os.environ, local_ray.MARK: str(tmp_path)}
    left = subprocess.Popen(["sleep", "600"], env=environment)
    try:
        assert not local_ray.ray_lives(tmp_path)
        store = subprocess.Popen([control_store, "600"], env=environment)
        try:
            assert local_ray.ray_lives(tmp_path)
        finally:
            store.kill()
            store.wait()
        assert not local_ray.ray_lives(tmp_path)
    finally:
        left.kill()
        left.wait()


@pytest.mark.parametrize(
    ("end", "kept"), [(None, False), (StoppedError("stored"), False), (Interruption(), False), (DataError("odd"), True)]
)
def test_the_folder_of_a_ray_stays_only_where_its_logs_may_say_why(
    end: BaseException | None, kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "rs-one"
    folder.mkdir()
    monkeypatch.setattr(local_ray, "start_ray", lambda **given: local_ray.LocalRay("", "", folder))
    with contextlib.suppress(StoppedError, Interruption, DataError), local_ray.local_ray(num_cpus=1, environment={}):
        if end is not None:
            raise end
    assert folder.exists() == kept
