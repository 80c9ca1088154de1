"""Clusters of hosts and containers that share a home folder."""

import socket
from pathlib import Path

import pytest

from jobs.cli import main
from jobs.clusters.managed import local_cluster
from jobs.clusters.managed.cluster_endpoint import connect
from jobs.clusters.managed.cluster_record import (
    LocalRecord,
    Record,
    ensure_token,
    find_record,
    is_local_address,
    record_at,
    was_taken_down,
)
from jobs.clusters.managed.managed_cluster import down, status_of
from jobs.errors import ClusterError, ClusterGoneError, JobLostError
from tests.jobs.control_store import living_ray
from trainers.distributed.machine import PID_NAMESPACE, this_machine
from trainers.errors import ResourceError

URL = "http://127.0.0.1:20001"
NAMESPACE = str(PID_NAMESPACE.readlink())
BOOT = this_machine().split("/")[1]
OTHER_HOST = f"head-a/00000000-0000-0000-0000-000000000000/{NAMESPACE}"
OTHER_CONTAINER = f"0a1b2c3d4e5f/{BOOT}/pid:[1]"
EARLIER_START = f"{socket.gethostname()}/00000000-0000-0000-0000-000000000000/{NAMESPACE}"
RENAMED = f"former-name/{BOOT}/{NAMESPACE}"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home folder that others may share."""
    monkeypatch.setenv("RAYSCRIBE_HOME", str(tmp_path / "home"))


def started_on(machine: str | None, folder: Path) -> LocalRecord:
    """A local cluster that was up."""
    record = LocalRecord(name="mine", created_s=1.0, state="up", dashboard=URL, folder=folder, machine=machine)
    record.write()
    ensure_token("mine")
    return record


@pytest.mark.parametrize("machine", [OTHER_HOST, OTHER_CONTAINER], ids=["host", "container"])
def test_a_ray_of_another_machine_is_not_taken_for_one_that_has_ended(machine: str, tmp_path: Path) -> None:
    record = started_on(machine, tmp_path)
    host = machine.partition("/")[0]
    with pytest.raises(ClusterError, match=f"cluster://mine was started on {host}.*: work there") as error:
        connect("cluster://mine")
    assert not isinstance(error.value, JobLostError)
    shown = status_of(record)
    assert shown.state == "unreachable" and host in shown.text
    assert not is_local_address("cluster://mine")


@pytest.mark.parametrize("machine", [OTHER_HOST, OTHER_CONTAINER], ids=["host", "container"])
def test_a_ray_of_another_machine_is_neither_ended_nor_replaced_nor_forgotten(
    machine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "ray"
    folder.mkdir()
    record = started_on(machine, folder)
    with pytest.raises(ClusterError, match="work there"):
        local_cluster.up("mine", num_cpus=1, dashboard_port=None, idle_stop_minutes=None, say=print)
    with pytest.raises(ClusterError, match="work there"):
        down(record, say=print)
    for command in (["down", "mine", "--force"], ["dashboard", "mine"], ["ssh", "mine"]):
        assert main(["cluster", *command]) == ClusterError.exit_code
        assert "work there" in capsys.readouterr().err
    assert find_record("mine") == record and record.token_path.exists() and folder.is_dir()


def test_who_listens_here_at_the_port_of_another_machine_s_ray_is_not_taken_for_it(tmp_path: Path) -> None:
    started_on(OTHER_HOST, tmp_path / "ray")
    with living_ray(tmp_path / "ray"):
        assert record_at(URL) is None
    assert connect(URL).headers is None


@pytest.mark.parametrize(
    "machine", [None, this_machine(), RENAMED, EARLIER_START], ids=["unsaid", "this", "renamed", "restarted"]
)
def test_a_ray_of_this_machine_that_is_not_here_has_ended(machine: str | None, tmp_path: Path) -> None:
    record = started_on(machine, tmp_path / "ray")
    with pytest.raises(ClusterGoneError, match="cluster://mine has ended"):
        connect("cluster://mine")
    assert status_of(record).state == "ended"
    down(record, say=print)
    assert find_record("mine") is None
    with pytest.raises(ClusterGoneError, match="cluster://mine was taken down"):
        connect("cluster://mine")


@pytest.mark.parametrize("machine", [None, this_machine(), RENAMED], ids=["unsaid", "this", "renamed"])
def test_a_ray_of_this_machine_lives(machine: str | None, tmp_path: Path) -> None:
    started_on(machine, tmp_path / "ray")
    with living_ray(tmp_path / "ray"):
        assert connect("cluster://mine").url == URL


@pytest.mark.parametrize("taken_down", [False, True])
def test_a_start_that_fails_leaves_what_was_known_before(
    taken_down: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if taken_down:
        started_on(None, tmp_path / "ray")
    seen: list[Record | None] = []

    def fail(**given: object) -> None:
        announce = given["announce"]
        assert callable(announce)
        announce(tmp_path / "new")
        seen.append(find_record("mine"))
        raise ResourceError("no ports")

    monkeypatch.setattr(local_cluster, "start_ray", fail)
    with pytest.raises(ResourceError):
        local_cluster.up("mine", num_cpus=1, dashboard_port=None, idle_stop_minutes=None, say=print)
    (new,) = seen
    assert isinstance(new, LocalRecord) and new.machine == this_machine()
    assert find_record("mine") is None and was_taken_down("mine") == taken_down
