"""A forwarded port, with a stand-in for ssh that listens at the port it is given and ends with its input."""

import os
import socket
import sys
from pathlib import Path

import psutil
import pytest

from jobs.clusters.managed.cluster_endpoint import close_tunnels, connect
from jobs.clusters.managed.cluster_record import (
    RECORDS,
    RayUpRecord,
    SshTarget,
    ensure_token,
    lock_cluster,
    was_taken_down,
)
from jobs.clusters.managed.ssh_tunnel import Tunnel
from jobs.errors import ClusterError, ClusterGoneError, JobLostError

STAND_IN = f"""#!{sys.executable}
import socket, sys
port = int(sys.argv[sys.argv.index("-L") + 1].split(":")[1])
if "nobody@head" in sys.argv:
    sys.exit("nobody@head: Permission denied (publickey).")
with socket.create_server(("127.0.0.1", port)):
    print("Welcome to this host")
    print(sys.argv[-1].removeprefix("echo ").partition(";")[0], flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in, and a user who has started nothing."""
    (tmp_path / "ssh").write_text(STAND_IN)
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("RAYSCRIBE_HOME", str(tmp_path / "home"))


def record(user: str = "ana", host: str = "head") -> RayUpRecord:
    made = RayUpRecord(name="hosts", created_s=1.0, state="up", ssh=SshTarget(host=host, user=user))
    made.write()
    return made


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_lost_connection_is_opened_again_at_the_same_port() -> None:
    tunnel = Tunnel(record())
    try:
        tunnel.ensure()
        (first,) = [child for child in psutil.Process().children() if str(tunnel.port) in " ".join(child.cmdline())]
        tunnel.ensure()
        assert first.is_running()
        first.kill()
        first.wait()
        assert not tunnel.alive
        tunnel.ensure()
        assert listens(tunnel.port)
    finally:
        tunnel.close()
    assert not listens(tunnel.port)


def test_a_head_that_refuses_is_named_with_ssh_s_own_message() -> None:
    with pytest.raises(ClusterError, match=r"nobody@head, does not accept .*: .*Permission denied \(publickey\)"):
        Tunnel(record(user="nobody")).ensure()


def test_a_token_is_not_sent_to_who_else_listens_at_the_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        tunnel = Tunnel(record(), port=other.getsockname()[1])
        with pytest.raises(ClusterError, match=r"does not accept an SSH connection: .*Address already in use"):
            tunnel.ensure()
    assert not tunnel.alive


def test_one_connection_serves_a_process_until_the_head_is_another() -> None:
    ensure_token("hosts")
    record()
    try:
        first = connect("cluster://hosts")
        assert connect("cluster://hosts").url == first.url
        assert not first.on_this_machine
        assert first.headers is not None and first.headers["Authorization"].startswith("Bearer ")
        record(host="other")
        second = connect("cluster://hosts")
        assert second.url != first.url
        assert not listens(int(first.url.rpartition(":")[2]))
    finally:
        close_tunnels()
    assert not listens(int(second.url.rpartition(":")[2]))


@pytest.mark.parametrize("kind", ["local", "ray-up"])
def test_a_cluster_that_was_taken_down_runs_no_job(kind: str, tmp_path: Path) -> None:
    with lock_cluster("gone"):
        made = RECORDS.validate_python({"name": "gone", "kind": kind, "created_s": 1.0, "folder": tmp_path})
        made.write()
    with lock_cluster("gone"):
        made.forget(taken_down=True)
    with pytest.raises(ClusterGoneError, match="cluster://gone was taken down"):
        connect("cluster://gone")


def test_a_start_that_failed_here_says_nothing_of_a_cluster_elsewhere() -> None:
    with lock_cluster("theirs"):
        made = RayUpRecord(name="theirs", created_s=1.0)
        made.write()
        made.forget()
    with pytest.raises(ClusterError, match="cluster://theirs is not known on this machine") as error:
        connect("cluster://theirs")
    assert not isinstance(error.value, JobLostError)


def test_a_cluster_that_is_started_again_is_no_longer_known_as_taken_down() -> None:
    record().forget(taken_down=True)
    assert was_taken_down("hosts")
    record()
    assert not was_taken_down("hosts")


def test_a_cluster_that_another_machine_has_started_or_that_starts_may_run_jobs() -> None:
    with pytest.raises(ClusterError, match="cluster://theirs is not known on this machine") as error:
        connect("cluster://theirs")
    assert not isinstance(error.value, JobLostError)
    RayUpRecord(name="new", created_s=1.0).write()
    with pytest.raises(ClusterError, match="is not up yet: repeat `rayscribe cluster up`") as error:
        connect("cluster://new")
    assert not isinstance(error.value, JobLostError)
