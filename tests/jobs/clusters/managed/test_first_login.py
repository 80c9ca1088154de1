"""What is wrong with a login is said at once, and nothing is remembered of a cluster that was not started."""

from pathlib import Path
from typing import Any

import pytest

from jobs.clusters.managed import ray_up_cluster, ssh_tunnel
from jobs.clusters.managed.cluster_record import find_record
from jobs.clusters.managed.ray_up_cluster import check_login, up
from jobs.errors import ClusterError
from trainers.errors import ConfigError

CONTENT: dict[str, Any] = {
    "cluster_name": "hosts",
    "provider": {"type": "local", "head_ip": "10.0.0.1", "worker_ips": []},
    "auth": {"ssh_user": "ana"},
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYSCRIBE_HOME", str(tmp_path / "home"))


def start(content: dict[str, Any]) -> None:
    up(content, idle_stop_minutes=None, timeout_s=60.0, say=print, now_s=1.0)


def test_a_key_that_is_not_there_is_named(tmp_path: Path) -> None:
    key = tmp_path / "id_ed25519"
    with pytest.raises(ConfigError, match=rf"ray_up.private_key of a spec\): there is no file {key}"):
        start({**CONTENT, "auth": {"ssh_user": "ana", "ssh_private_key": str(key)}})
    assert find_record("hosts") is None


@pytest.mark.parametrize(
    ("ssh", "says"),
    [
        ("echo 'ana@10.0.0.1: Permission denied (publickey).' >&2; exit 255", "Permission denied (publickey)."),
        ("exit 1", "exit code 1"),
        ("exec sleep 60", "no answer in 0 s"),
    ],
)
def test_a_head_that_lets_nobody_in_is_named_with_what_to_try(
    monkeypatch: pytest.MonkeyPatch, ssh: str, says: str
) -> None:
    monkeypatch.setattr(ssh_tunnel, "ssh_command", lambda *given: ["sh", "-c", ssh])
    if says.startswith("no answer"):
        monkeypatch.setattr(ray_up_cluster, "LOGIN_TIMEOUT_S", 0.2)
    with pytest.raises(ClusterError) as error:
        start(CONTENT)
    assert "ana cannot log in to the head, 10.0.0.1" in str(error.value)
    assert f"{says}): nothing was started; try `ssh ana@10.0.0.1`" in str(error.value)
    assert find_record("hosts") is None


def test_a_cloud_has_no_head_before_it_was_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh_tunnel, "ssh_command", lambda *given: ["false"])
    check_login({"provider": {"type": "aws"}, "auth": {"ssh_user": "ana"}})
    monkeypatch.setattr(ssh_tunnel, "ssh_command", lambda *given: ["true"])
    check_login(CONTENT)
