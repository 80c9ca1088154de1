"""How a head is found: by Ray itself, with nothing that others of this machine have left."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import yaml

from jobs.clusters.managed import ray_launcher
from jobs.clusters.managed.cluster_record import RayUpRecord, SshTarget
from jobs.clusters.managed.ray_launcher import NoHeadError, head_of, ray_environment
from jobs.clusters.managed.ssh_tunnel import ssh_command
from jobs.errors import ClusterError

CONTENT = {
    "cluster_name": "hosts",
    "provider": {"type": "local", "head_ip": "10.0.0.1", "worker_ips": []},
    "auth": {"ssh_user": "ana"},
}
# What `ray up` leaves of a head that has come up, and what it takes the file for, in the folder of temporary files.
STARTED = """
import sys, yaml
from ray.autoscaler._private.local.node_provider import LocalNodeProvider
from ray.autoscaler.sdk import bootstrap_config
content = yaml.safe_load(open(sys.argv[1]))
bootstrap_config(content)
hosts = LocalNodeProvider(content["provider"], "hosts")
hosts.create_node({}, {"ray-node-type": "head", "ray-node-status": "up-to-date"}, 1)
"""


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RayUpRecord:
    """A cluster that was never started."""
    monkeypatch.setenv("RAYSCRIBE_HOME", str(tmp_path / "home"))
    made = RayUpRecord(name="hosts", created_s=1.0)
    made.write()
    made.config_path.write_text(yaml.safe_dump(CONTENT))
    return made


def run_ray(record: RayUpRecord, script: str, **variables: str) -> None:
    environment = {**ray_environment(record), **variables}
    subprocess.run([sys.executable, "-c", script, record.config_path], env=environment, check=True, capture_output=True)


@pytest.mark.integration
def test_what_another_user_has_left_does_not_say_how_the_head_is_reached(
    record: RayUpRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    monkeypatch.setenv("TMPDIR", str(shared))
    with pytest.raises(NoHeadError, match=r"the head of hosts is not known: .*Head node .* not found"):
        head_of(record)
    assert list(shared.iterdir()) == []
    run_ray(record, STARTED, TMPDIR=str(shared))
    (planted,) = shared.glob("ray-config-*")
    planted.write_text(planted.read_text().replace('"auth": {', '"auth": {"ssh_proxy_command": "planted", '))
    assert json.loads(planted.read_text())["config"]["auth"]["ssh_proxy_command"] == "planted"
    assert head_of(record) == SshTarget(host="10.0.0.1", user="ana")


def test_ray_s_own_commands_keep_their_temporary_files_in_the_cluster_s_folder_until_it_ends(
    record: RayUpRecord,
) -> None:
    folder = ray_environment(record)["TMPDIR"]
    asked = [sys.executable, "-c", "import tempfile; print(tempfile.gettempdir())"]
    said = subprocess.run(asked, env=ray_environment(record), capture_output=True, text=True, check=True).stdout
    assert said.strip() == folder != tempfile.gettempdir()
    assert Path(folder).stat().st_mode & 0o777 == 0o700
    record.forget()
    assert not Path(folder).exists() and record.files.is_dir()


def test_a_cloud_that_does_not_respond_holds_nobody_up(record: RayUpRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_launcher, "ASK", "import time; time.sleep(600)")
    monkeypatch.setattr(ray_launcher, "ASK_TIMEOUT_S", 1.0)
    with pytest.raises(ClusterError, match="the head of hosts is not known: no answer in 1 s"):
        head_of(record)


def test_the_reason_why_a_head_is_not_known_is_shown(record: RayUpRecord) -> None:
    record.config_path.write_text(yaml.safe_dump({**CONTENT, "provider": {"type": "mainframe"}}))
    with pytest.raises(ClusterError, match=r"the head of hosts is not known: .*mainframe") as error:
        head_of(record)
    assert not isinstance(error.value, NoHeadError)


@pytest.mark.system
def test_ray_s_ssh_uses_no_connection_that_others_of_this_machine_could_have_opened(record: RayUpRecord) -> None:
    # As Ray gives them; %C is known to everybody, and the folder is made by whoever is first.
    ray = ["ControlMaster=auto", "ControlPath=/tmp/ray_ssh_070dd72385/e3b0c44298/%C", "ControlPersist=10s"]
    line = ["ssh", "-G", *(part for option in ray for part in ("-o", option)), "ana@10.0.0.1"]
    done = subprocess.run(line, env=ray_environment(record), capture_output=True, text=True, check=True)
    assert "stricthostkeychecking accept-new" in done.stdout and "controlpath" not in done.stdout


@pytest.mark.system
def test_keys_of_hosts_are_remembered_in_a_home_folder_of_any_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # ssh shows files apart by one space.
    monkeypatch.setenv("RAYSCRIBE_HOME", str(tmp_path / "my  home 100%h"))
    made = RayUpRecord(name="hosts", created_s=1.0, ssh=SshTarget(host="10.0.0.1", user="ana"))
    made.write()
    assert made.ssh is not None
    for line in (["ssh", "ana@10.0.0.1"], ssh_command(made.ssh, made.known_hosts_path)):
        asked = [line[0], "-G", *line[1:]]
        done = subprocess.run(asked, env=ray_environment(made), capture_output=True, text=True, check=True)
        assert f"userknownhostsfile {made.known_hosts_path}\n" in done.stdout
