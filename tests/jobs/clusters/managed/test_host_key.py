"""A head that shows another key than the remembered one, with a stand-in for ssh that checks keys as ssh does."""

import os
import subprocess
from pathlib import Path

import pytest

from jobs.clusters.managed import ray_up_cluster
from jobs.clusters.managed.cluster_record import RayUpRecord, SshTarget
from jobs.clusters.managed.ray_launcher import ray_environment
from jobs.clusters.managed.ray_up_cluster import up
from jobs.errors import ClusterError

# Of an option that is given twice the first counts, as for ssh.
STAND_IN = """#!/bin/sh
strict= known=
while [ "$1" = -o ]; do
    case "$2" in
        StrictHostKeyChecking=*) strict=${strict:-${2#*=}} ;;
        UserKnownHostsFile=*) known=${known:-$(echo "${2#*=}" | tr -d '"')} ;;
    esac
    shift 2
done
key="head $(cut -d' ' -f1,2 KEY)"
if [ "$strict" != no ] && [ -s "$known" ] && ! grep -qF "$key" "$known"; then
    echo "Host key verification failed." >&2
    exit 255
fi
[ -s "$known" ] || [ "$known" = /dev/null ] || echo "$key" > "$known"
"""
CONTENT = {
    "cluster_name": "hosts",
    "provider": {"type": "local", "head_ip": "head", "worker_ips": []},
    "auth": {"ssh_user": "ana"},
}


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RayUpRecord:
    """A cluster that was up, and whose head shows another key since."""
    for name in ("first", "second"):
        line = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name)]
        subprocess.run(line, check=True)
    (tmp_path / "ssh").write_text(STAND_IN.replace("KEY", str(tmp_path / "second.pub")))
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("RAYSCRIBE_HOME", str(tmp_path / "home"))
    made = RayUpRecord(name="hosts", created_s=1.0, state="up", ssh=SshTarget(host="head", user="ana"))
    made.write()
    made.config_path.write_text("{}")
    made.known_hosts_path.write_text(" ".join(["head", *(tmp_path / "first.pub").read_text().split()[:2]]) + "\n")
    return made


@pytest.mark.system
@pytest.mark.parametrize("restart", [False, True])
def test_no_start_accepts_a_changed_key(record: RayUpRecord, monkeypatch: pytest.MonkeyPatch, restart: bool) -> None:
    before = record.known_hosts_path.read_text()
    monkeypatch.setattr(ray_up_cluster, "responds", lambda record: False)
    monkeypatch.setattr(ray_up_cluster, "head_of", lambda record: record.ssh)
    with pytest.raises(ClusterError, match=r"head, has another SSH host key .*remove .*hosts.known_hosts"):
        up(CONTENT, idle_stop_minutes=None, timeout_s=1.0, say=print, now_s=1.0, restart=restart)
    assert record.known_hosts_path.read_text() == before


@pytest.mark.system
def test_ray_s_own_ssh_checks_the_remembered_key(record: RayUpRecord) -> None:
    ray = ["ssh", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "ana@head", "uptime"]
    done = subprocess.run(ray, env=ray_environment(record), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (255, "Host key verification failed.\n")
    record.known_hosts_path.unlink()
    for _ in range(2):
        assert subprocess.run(ray, env=ray_environment(record), check=False).returncode == 0
    assert record.known_hosts_path.exists()
