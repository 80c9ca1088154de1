"""The first five minutes: `rayscribe cluster up --local`, submit, and down, as a new user runs them."""

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import requests

from jobs.clusters.managed.cluster_record import LocalRecord, all_records
from jobs.clusters.managed.local_cluster import up
from jobs.clusters.managed.ray_up_content import IDLE_STOP
from trainers.distributed import local_ray
from trainers.distributed.local_ray import processes_of
from trainers.errors import ResourceError

REPOSITORY = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-c", "import sys; from jobs.cli import main; sys.exit(main())"]
# What an idle stop knows of jobs within a second.
COUNT = """
import sys
from pathlib import Path
from jobs.clusters import ray_private
from jobs.clusters.idle_stop import working_jobs

ray_private.RESPONSE_TIMEOUT_S = 1.0
print(working_jobs(sys.argv[1], Path(sys.argv[2])))
"""
DASHBOARD = "ray/dashboard/dashboard.py"
RAY = Path(sys.executable).parent / "ray"


class User:
    """A user with a home folder of their own, and nothing of Ray's in the environment."""

    def __init__(self, home: Path):
        self.home = home
        known = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "RAYSCRIBE_"))}
        self.environment = {**known, "HOME": str(home)}

    def run(self, *arguments: str, variables: Mapping[str, str] | None = None, code: int = 0) -> str:
        """Runs a command to its end; gives all that it shows."""
        command = [str(RAY), *arguments[1:]] if arguments[0] == "ray" else [*COMMAND, *arguments]
        done = subprocess.run(
            command,
            cwd=REPOSITORY,
            env={**self.environment, **(variables or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == code, done.stdout
        return done.stdout

    @property
    def record(self) -> LocalRecord:
        """What is remembered."""
        return LocalRecord.model_validate_json((self.home / ".rayscribe/clusters/local.json").read_text())

    @property
    def token(self) -> str:
        """The cluster's token."""
        return (self.home / ".rayscribe/clusters/local.token").read_text()


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[User]:
    """A user whose cluster is up, and is ended whatever happens."""
    user = User(tmp_path_factory.mktemp("user"))
    shown = user.run("cluster", "up", "--local")
    record = user.record
    try:
        assert f"local is up: {record.dashboard}" in shown
        assert user.token not in shown
        yield user
    finally:
        assert record.folder is not None
        local_ray.stop_ray(record.folder)


def test_the_same_command_again_changes_nothing(user: User) -> None:
    before = user.record
    assert "local is up already" in user.run("cluster", "up", "--local")
    assert user.record == before
    (shown,) = json.loads(user.run("cluster", "status", "--json"))
    assert (shown["name"], shown["state"], shown["nodes"], shown["jobs"]) == ("local", "up", 1, 0)
    assert shown["resources"]["CPU"] >= 4


def test_who_has_no_token_is_refused(user: User) -> None:
    assert user.record.dashboard is not None
    job = {"entrypoint": "true"}
    jobs = f"{user.record.dashboard}/api/jobs/"
    assert requests.post(jobs, json=job, timeout=60).status_code == 401
    wrong = {"Authorization": f"Bearer {'0' * 64}"}
    assert requests.post(jobs, json=job, headers=wrong, timeout=60).status_code == 403


def test_ray_s_own_commands_work_with_the_variables_that_are_shown(user: User) -> None:
    shown = user.run("cluster", "dashboard")
    assert user.token not in shown
    exports = [line.removeprefix("  export ").split() for line in shown.splitlines() if line.startswith("  export ")]
    variables = dict(item.split("=", 1) for line in exports for item in line)
    variables["RAY_AUTH_TOKEN_PATH"] = variables["RAY_AUTH_TOKEN_PATH"].replace("~", str(user.home))
    assert "hello from a job" in user.run(
        "ray", "job", "submit", "--", "echo", "hello", "from", "a", "job", variables=variables
    )


def test_a_preflight_and_a_dry_run_find_the_only_cluster(user: User) -> None:
    assert "cluster://local responds" in user.run("preflight")
    recipe = "jobs/specs/whisper_micro.yaml"
    request = json.loads(user.run("submit", recipe, "--dry-run", "--json"))
    assert request["address"] == "cluster://local"
    assert "no cluster is named other on this machine (known: local)" in user.run(
        "submit", recipe, "--cluster", "other", "--dry-run", code=21
    )


def test_an_idle_stop_may_be_added_to_a_cluster_that_runs_and_changed(user: User) -> None:
    folder = user.record.folder
    assert folder is not None
    for minutes in ("600", "500"):
        user.run("cluster", "up", "--local", "--idle-stop", minutes)
    end = time.monotonic() + 60.0
    watches: list[str] = []
    while watches != ["500"] and time.monotonic() < end:
        lines = [process.cmdline() for process in processes_of(folder)]
        watches = [line[line.index("--minutes") + 1] for line in lines if IDLE_STOP in line]
        time.sleep(0.1)
    assert watches == ["500"]
    assert "it ends after 500 min without jobs, as before" in user.run("cluster", "up", "--local")


def test_a_cluster_with_a_working_job_is_not_ended_by_accident(user: User) -> None:
    dashboard = user.record.dashboard
    variables = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": user.token, "RAY_ADDRESS": str(dashboard)}
    user.run(
        "ray", "job", "submit", "--no-wait", "--submission-id", "sleeps", "--", "sleep", "600", variables=variables
    )
    assert "jobs run on local (sleeps)" in user.run("cluster", "down", code=22)
    folder = user.record.folder
    assert folder is not None
    (hung,) = [process for process in processes_of(folder) if DASHBOARD in " ".join(process.cmdline())]
    hung.suspend()
    try:
        count = [sys.executable, "-c", COUNT, str(dashboard), str(folder)]
        done = subprocess.run(
            count, env={**user.environment, **variables}, cwd=REPOSITORY, capture_output=True, check=True
        )
        assert done.stdout.splitlines()[-1] == b"1", "an idle stop asks the control store where the dashboard hangs"
    finally:
        hung.resume()
    shown = user.run("cluster", "down", "--force")
    assert processes_of(folder) == []
    assert not folder.exists()
    (logs,) = (user.home / ".rayscribe/clusters/local").glob("logs-*")
    assert f"log files of its nodes: {logs}" in shown
    assert list(logs.glob("*/job-driver-sleeps.log"))
    assert [path.name for path in (user.home / ".rayscribe/clusters").iterdir()] == ["local"]
    assert "start one with `rayscribe cluster up --local`" in user.run("cluster", "down", code=21)


@pytest.mark.long
def test_the_demo_s_ray_goes_on_with_the_run_s_name_in_its_dashboard_until_the_user_ends_it(tmp_path: Path) -> None:
    user = User(tmp_path)
    small = ["training.max_steps=4", "training.eval_steps=4", "training.save_steps=4", "run.name=small-demo"]
    small += [f"run.storage_path={tmp_path}/runs", "data.demo.train_utterances=40", "data.demo.validation_utterances=4"]
    sets = [word for item in [*small, "data.demo.test_utterances=4"] for word in ("--set", item)]
    try:
        shown = user.run("demo", "--keep-ray", *sets)
        token = tmp_path / ".rayscribe/clusters/demo.token"
        assert "a browser asks once for the token: cat ~/.rayscribe/clusters/demo.token" in shown
        assert token.read_text() not in shown
        dashboard = re.search(r"dashboard of demo: (http\S+)", user.run("cluster", "dashboard", "demo"))
        assert dashboard is not None
        headers = {"Authorization": f"Bearer {token.read_text()}"}
        cookie = requests.post(f"{dashboard[1]}/api/authenticate", headers=headers, timeout=60).cookies
        jobs = requests.get(f"{dashboard[1]}/api/jobs/", cookies=cookie, timeout=60).json()
        assert [job["metadata"]["job_name"] for job in jobs] == ["small-demo"]
        listed = user.run("list").splitlines()[1]
        assert "small-demo" in listed and "SUCCEEDED" in listed and "%" in listed
    finally:
        user.run("cluster", "down", "demo", "--force", "--no-logs")
    assert user.run("cluster", "status").startswith("no cluster was started")


@pytest.mark.long
def test_a_start_whose_agent_s_port_is_taken_names_the_port_and_who_holds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYSCRIBE_HOME", str(tmp_path))
    ports, place = [*local_ray.held_ports(9).items()], local_ray.PORTS.index("dashboard-agent-listen-port")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        # As if it had been taken since it was found free.
        ports[place] = (port, socket.socket())
        monkeypatch.setattr(local_ray, "held_ports", lambda _: dict(ports))
        with pytest.raises(ResourceError) as error:
            up("clash", num_cpus=1, dashboard_port=None, idle_stop_minutes=None, say=print)
    assert f"--dashboard-agent-listen-port={port} is taken by process {os.getpid()} (" in str(error.value)
    assert all_records() == []
