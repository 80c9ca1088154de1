"""What `ray up` is given, and what its output says to people."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from jobs.clusters.managed import ray_launcher, ray_up_cluster, ssh_tunnel
from jobs.clusters.managed.cluster_record import (
    LocalRecord,
    RayUpRecord,
    SshTarget,
    ensure_token,
    find_record,
    lock_cluster,
    was_taken_down,
)
from jobs.clusters.managed.ray_launcher import NoHeadError, plain, run_logged, telling
from jobs.clusters.managed.ray_up_cluster import attach_command, down, up
from jobs.clusters.managed.ray_up_content import (
    TOKEN_ON_NODES,
    environment_of,
    gcs_port,
    min_workers,
    name_of,
    prepared,
    stop_commands,
)
from jobs.errors import ClusterError, ConflictError
from tests.processes import has_ended
from trainers.errors import ConfigError

CONTENT = {
    "cluster_name": "hosts",
    "provider": {"type": "local", "head_ip": "10.0.0.1", "worker_ips": ["10.0.0.2"]},
    "auth": {"ssh_user": "ubuntu"},
    "file_mounts": {"~/data": "/data"},
    "head_start_ray_commands": ["ray stop", "export RAY_AUTH_MODE=token; ulimit -n 65536; ray start --head"],
}

OWN_HOSTS = {"type": "local", "head_ip": "10.0.0.1", "worker_ips": ["10.0.0.2", "10.0.0.3"]}
POOLS = {"head": {"min_workers": 0}, "data": {"min_workers": 1}, "gpu": {"min_workers": 2}}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user who has started nothing."""
    monkeypatch.setenv("RAYSCRIBE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module in the place of Ray's command line, which prints its arguments and fails."""
    package = tmp_path / "stand_in.py"
    package.write_text(
        "import sys\nprint('[1/7] Waiting for SSH')\nprint('Permission denied:', sys.argv[1:3])\nsys.exit(1)\n"
    )
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nshift 3\nexec {sys.executable} {package} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(ssh_tunnel, "ssh_command", lambda *given: ["true"])
    return package


def test_each_node_gets_the_token_of_this_machine_beside_the_user_s_files() -> None:
    config = prepared(CONTENT, Path("/home/ana/hosts.token"))
    assert config["file_mounts"] == {"~/data": "/data", TOKEN_ON_NODES: "/home/ana/hosts.token"}
    assert {**config, "file_mounts": CONTENT["file_mounts"]} == CONTENT


def test_an_idle_stop_runs_on_the_head_with_what_its_ray_was_started_with() -> None:
    *before, watch = prepared(CONTENT, Path("/t"), 30)["head_start_ray_commands"]
    assert before == CONTENT["head_start_ray_commands"]
    assert watch.startswith(
        "export RAY_AUTH_MODE=token; nohup python -m rayscribe.jobs.clusters.idle_stop --minutes 30 --cluster hosts "
    )
    assert watch.endswith("&")


@pytest.mark.parametrize(
    ("command", "port", "exports"),
    [
        ("export A=b C=$HOME/c; ray start --head --port=7000", 7000, 'export A=b; export C="$HOME/c"; '),
        ("export PATH='/my ray/bin':$PATH && ray start --head --port 7000", 7000, 'export PATH="/my ray/bin:$PATH"; '),
        ("ray start --head --port=$PORT", 6379, ""),
        ("ray stop", 6379, ""),
    ],
)
def test_port_and_variables_of_a_head_are_those_of_its_start_command(command: str, port: int, exports: str) -> None:
    content = {"head_start_ray_commands": [command]}
    assert (gcs_port(content), environment_of(content)) == (port, exports)


def test_own_hosts_are_stopped_one_by_one_and_the_head_last() -> None:
    worker, head = stop_commands({**CONTENT, "auth": {"ssh_user": "ubuntu"}})
    assert (worker[0], worker[-2]) == ("ssh", "ubuntu@10.0.0.2")
    assert "ray stop" in worker[-1]
    assert head[0] == "bash" and "ray stop" in head[-1]


@pytest.mark.parametrize("content", [{}, {"cluster_name": "x"}, {"cluster_name": 1, "provider": {}}])
def test_a_file_of_another_kind_is_refused(content: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="neither a file of `ray up` nor a spec"):
        name_of(content)


def test_a_failed_start_says_why_and_is_remembered_so_that_it_can_be_ended(home: Path, ray: Path) -> None:
    shown: list[str] = []
    for _ in range(2):
        with pytest.raises(ClusterError) as error:
            up(CONTENT, idle_stop_minutes=None, timeout_s=60.0, say=shown.append, now_s=1.0)
    assert "starting hosts failed (exit code 1):\nPermission denied: ['up'" in str(error.value)
    assert f"full log: {home}/clusters/hosts/up.log" in str(error.value)
    assert [line.split("s  ")[1] for line in shown] == ["[1/7] Waiting for SSH"] * 2
    record = find_record("hosts")
    assert record is not None and (record.state, record.kind) == ("starting", "ray-up")
    assert yaml.safe_load(record.config_path.read_text())["cluster_name"] == "hosts"
    assert record.token_path.read_text() not in str(error.value)


def test_progress_that_repeats_itself_is_shown_again_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shown() -> int:
        lines: list[str] = []
        given: Any = {"environment": os.environ, "timeout_s": 60.0, "say": lines.append, "doing": "waiting"}
        run_logged(
            ["sh", "-c", "echo SSH still not available; echo SSH still not available"], tmp_path / "log", **given
        )
        return len(lines)

    assert shown() == 1
    monkeypatch.setattr(ray_launcher, "REPEAT_S", 0.0)
    assert shown() == 2


def test_a_cluster_whose_end_failed_stays_remembered(ray: Path) -> None:
    record = RayUpRecord(name="cloud", created_s=1.0)
    record.write()
    record.config_path.write_text(yaml.safe_dump({**CONTENT, "provider": {"type": "aws"}}))
    with pytest.raises(ClusterError, match="ending cloud failed"):
        down(record, say=lambda line: None)
    assert find_record("cloud") == record


def test_the_name_of_a_ray_of_this_machine_is_not_taken_for_hosts() -> None:
    LocalRecord(name="hosts", created_s=1.0).write()
    with pytest.raises(ConflictError, match="rayscribe cluster down hosts"):
        up(CONTENT, idle_stop_minutes=None, timeout_s=1.0, say=print, now_s=1.0)


def test_a_command_that_takes_too_long_is_ended_with_what_it_started(tmp_path: Path) -> None:
    command = ["sh", "-c", "echo cannot reach 10.0.0.2; sleep 600 & wait"]
    with pytest.raises(ClusterError, match=r"took longer than 1 s:\ncannot reach 10\.0\.0\.2"):
        run_logged(command, tmp_path / "log", environment=os.environ, timeout_s=1.0, say=print, doing="starting hosts")


def test_lines_are_shown_without_colors_and_only_those_that_say_why() -> None:
    line = "2026-11-22 20:40:32,245\tINFO updater.py:53 -- \x1b[1m[1/7] Waiting\x1b[0m"
    assert plain(line) == "[1/7] Waiting"
    assert telling(["fine", "ssh: Connection refused", "", "done"]) == ["ssh: Connection refused"]
    assert telling(["fine", "", "done"]) == ["fine", "done"]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"provider": OWN_HOSTS}, 2),
        ({"provider": OWN_HOSTS, "min_workers": 0}, 0),
        ({"provider": {"type": "local", "head_ip": "10.0.0.1", "worker_ips": []}}, 0),
        ({"provider": {"type": "aws"}, "head_node_type": "head", "available_node_types": POOLS}, 3),
    ],
)
def test_the_start_waits_for_the_workers_that_are_always_there(content: dict[str, Any], expected: int) -> None:
    assert min_workers(content) == expected


HEAD = SshTarget(host="10.0.0.1", user="ana")


class Calls(list[list[str]]):
    """What was called of Ray's command line, for a cluster that was up before, and whose dashboard does not respond."""

    def up(self, content: dict[str, Any], **options: Any) -> list[str]:
        """Gives the lines that are shown."""
        shown: list[str] = []
        given = {"idle_stop_minutes": None, "timeout_s": 60.0, "say": shown.append, "now_s": 1.0, **options}
        up(content, **given)
        return shown


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """A head that this machine plays."""
    made = Calls()
    for module in (ssh_tunnel, ray_up_cluster):
        monkeypatch.setattr(module, "ssh_command", lambda *given: ["sh", "-c"])
    monkeypatch.setattr(ray_up_cluster, "responds", lambda record: False)
    monkeypatch.setattr(ray_up_cluster, "head_of", lambda record: HEAD)
    monkeypatch.setattr(ray_up_cluster, "_wait_for_nodes", lambda *given, **options: None)
    monkeypatch.setattr(ray_up_cluster, "_ray", lambda record, arguments, *given, **options: made.append(arguments))
    return made


def remembered(port: int, **fields: Any) -> dict[str, Any]:
    """A cluster whose first `up` has timed out while it waited for a node; gives its file."""
    content = {**CONTENT, "head_start_ray_commands": [f"ray start --head --port={port} --dashboard-port=1"]}
    record = RayUpRecord(name="hosts", created_s=1.0, ssh=HEAD, **fields)
    record.write()
    record.config_path.write_text(
        yaml.safe_dump(prepared(content, ensure_token("hosts"), record.idle_stop_minutes), sort_keys=False)
    )
    record.known_hosts_path.write_text("10.0.0.1 its key")
    return content


def test_ray_is_not_restarted_under_jobs_because_a_dashboard_does_not_respond(calls: Calls) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        content = remembered(server.getsockname()[1])
        calls.up({**content, "max_workers": 7})
        calls.up({**content, "max_workers": 7}, restart=True)
    first, second = calls
    assert (first[0], first[-1]) == ("up", "--no-restart")
    assert second[0] == "up" and "--no-restart" not in second
    record = find_record("hosts")
    assert record is not None and record.state == "up" and record.known_hosts_path.exists()


def test_ray_is_started_where_the_head_has_none(calls: Calls) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    calls.up(remembered(port))
    assert calls[0][0] == "up" and "--no-restart" not in calls[0]


def test_a_head_that_cannot_be_asked_is_not_restarted(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    content = remembered(6379)
    monkeypatch.setattr(ssh_tunnel, "ssh_command", lambda *given: ["sh", "-c", "echo No route to host >&2; exit 255"])
    with pytest.raises(ClusterError, match=r"head of hosts, 10\.0\.0\.1 \(No route to host\).*--restart"):
        calls.up(content)
    assert calls == []


@pytest.mark.parametrize("host", ["10.0.0.9", None])
def test_the_key_of_a_head_is_forgotten_with_its_machine(
    calls: Calls, monkeypatch: pytest.MonkeyPatch, host: str | None
) -> None:
    def other(record: RayUpRecord) -> SshTarget:
        if host is None and not calls:
            raise NoHeadError("not found")
        return HEAD.model_copy(update={"host": host or HEAD.host})

    monkeypatch.setattr(ray_up_cluster, "head_of", other)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    calls.up(remembered(port))
    record = find_record("hosts")
    assert record is not None and not record.known_hosts_path.exists()


def test_an_idle_stop_is_replaced_on_a_cluster_that_runs_and_what_holds_is_said(
    calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = remembered(6379)
    monkeypatch.setattr(ray_up_cluster, "responds", lambda record: True)
    calls.up(content)
    assert calls == []
    calls.up(content, idle_stop_minutes=1)
    assert [call[0] for call in calls] == ["up", "exec"] and "--no-restart" in calls[0]
    assert "jobs.clusters.idle_stop --minutes 1 --cluster hosts" in calls[1][2]
    assert calls.up(content) == ["it ends after 1 minute without jobs, as before; --idle-stop changes that"]
    assert [call[0] for call in calls[2:]] == ["exec"]


def test_a_cluster_with_a_dead_host_is_forgotten_by_force_only(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    remembered(6379)
    record = find_record("hosts")
    assert isinstance(record, RayUpRecord)
    monkeypatch.setattr(ray_up_cluster, "_stop_hosts", lambda *given: iter(["10.0.0.2 (no answer in 90 s)", None]))
    with pytest.raises(ClusterError, match=r"10\.0\.0\.2 .*repeat .*--force"):
        down(record, say=print)
    assert find_record("hosts") == record
    shown: list[str] = []
    down(record, say=shown.append, force=True)
    assert find_record("hosts") is None and "10.0.0.2 (no answer" in shown[0]
    assert not was_taken_down("hosts"), "jobs may run on"


def test_a_cluster_of_which_nothing_is_left_is_known_as_taken_down(
    calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    remembered(6379)
    record = find_record("hosts")
    assert isinstance(record, RayUpRecord)
    monkeypatch.setattr(ray_up_cluster, "_stop_hosts", lambda *given: iter([None, None]))
    down(record, say=print)
    assert was_taken_down("hosts")


def test_two_commands_do_not_start_and_end_one_cluster_at_once() -> None:
    with lock_cluster("hosts"), pytest.raises(ConflictError, match="is already running for hosts"):
        up(CONTENT, idle_stop_minutes=None, timeout_s=1.0, say=print, now_s=1.0)


def test_a_start_that_is_asked_to_end_ends_what_it_has_started(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    command = ["sh", "-c", f"echo Launched; echo $$ >{tmp_path / 'pid'}; echo Launched 2; sleep 600"]

    def say(line: str) -> None:
        if line.endswith("2"):
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(SystemExit) as ended, lock_cluster("hosts"):
        run_logged(command, tmp_path / "log", environment=os.environ, timeout_s=60.0, say=say, doing="starting")
    assert ended.value.code == 143
    assert has_ended(int((tmp_path / "pid").read_text()))
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_command_on_the_head_prints_what_it_prints_alone(calls: Calls) -> None:
    remembered(1)
    record = find_record("hosts")
    assert isinstance(record, RayUpRecord)
    said = subprocess.run(
        attach_command(record, "echo $((6 * 7))", terminal=False),
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout == "42\n"
    assert attach_command(record, None, terminal=True) == ["sh", "-c", "-t"]


def test_a_container_is_entered_by_ray(calls: Calls) -> None:
    content = remembered(1)
    record = find_record("hosts")
    assert isinstance(record, RayUpRecord)
    record.config_path.write_text(yaml.safe_dump({**content, "docker": {"image": "a", "container_name": "b"}}))
    assert attach_command(record, "nvidia-smi", terminal=False)[-3:] == [
        "exec",
        str(record.config_path),
        "nvidia-smi",
    ]
    assert attach_command(record, None, terminal=True)[-2:] == ["attach", str(record.config_path)]
