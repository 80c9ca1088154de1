"""A Ray that task.py starts on this machine for itself."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.integration.driver_process import RayHead
from tests.jobs.ledger.builders import wait_until
from trainers.distributed.local_ray import LocalRay, gcs_address_at, processes_of, start_ray, without_ray_settings

REPOSITORY = Path(__file__).parents[2]
# The port of a dashboard's agent where none is given; a second Ray that takes it accepts no jobs.
AGENT_PORT = 52365
AGENTS = ("/dashboard/agent.py", "/runtime_env/agent/main.py")
TRAIN = """
import os, ray
from tests.trainers.synthetic import config
from trainers.distributed.ray_connection import connected

with connected(config({})):
    print(ray.get(ray.remote(lambda: os.environ.get("RAY_AUTH_TOKEN", "none")).remote()))
"""
# The same, and what the dashboard knows of a training, and of the job that it is; its worker needs no torch.
TAB = """
import json, os, sys, urllib.request
import ray
from ray.train import RunConfig, ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
from tests.trainers.synthetic import config
from trainers.distributed.ray_connection import connected

with connected(config({"run": {"name": "mine"}})):
    named = RunConfig(name="mine", storage_path=sys.argv[1])
    DataParallelTrainer(lambda: None, scaling_config=ScalingConfig(num_workers=1), run_config=named).fit()
    print(ray.get(ray.remote(lambda: os.environ.get("RAY_AUTH_TOKEN", "none")).remote()))

    def known(path):
        url = f"http://{ray._private.worker.get_dashboard_url()}/api/{path}"
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {os.environ['RAY_AUTH_TOKEN']}"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    print([(run["name"], run["status"]) for run in known("train/v2/runs/v1")["train_runs"]])
    print([(job["metadata"]["job_name"], job["status"]) for job in known("jobs/")])
"""
JOIN = """
import ray
from tests.trainers.synthetic import config
from trainers.distributed.ray_connection import connected

with connected(config({})):
    print(ray.cluster_resources()["CPU"])
"""
SUM = """
import ray.data
from tests.trainers.synthetic import config
from trainers.distributed.ray_connection import connected

with connected(config({})):
    print(ray.data.range(3).map_batches(lambda batch: batch).sum("id"))
"""
CLUSTER_CHECKS = """
import sys
from jobs.cli.app import main

main(["preflight", "--address", sys.argv[1]])
"""
KILLED = """
import os, signal
from tests.trainers.synthetic import config
from trainers.distributed.ray_connection import connected

with connected(config({})):
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def first() -> Iterator[LocalRay]:
    """A Ray of this machine, which others are started next to."""
    ray = start_ray(num_cpus=3, environment={**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "a" * 32})
    # Ray opens its own folder to all users.
    assert (ray.folder / "ray" / "session_latest").exists()
    assert ray.folder.stat().st_mode & 0o777 == 0o700
    yield ray
    ray.stop()
    assert processes_of(ray.folder) == []
    assert not ray.folder.exists()


def started_in(home: Path) -> str:
    """Starts a Ray of its own in a process with this home folder.

    Returns:
        The token that a worker of it has in its environment.
    """
    return printed_by(TRAIN, HOME=str(home))


@pytest.mark.long
def test_a_local_ray_shows_its_trainings_and_writes_no_token_for_others_to_find(tmp_path: Path) -> None:
    token, runs, jobs = printed_by(TAB, str(tmp_path / "runs"), HOME=str(tmp_path)).splitlines()[-3:]
    # The Ray is closed to others all the same.
    assert len(token) == 64
    assert not (tmp_path / ".ray").exists()
    assert runs == "[('mine', 'FINISHED')]"
    assert jobs == "[('mine', 'RUNNING')]"


def printed_by(script: str, *arguments: str, **added: str) -> str:
    """What a Python process prints that knows no Ray but by the variables that are added."""
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env=environment(**added),
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def environment(**added: str) -> dict[str, str]:
    return {**without_ray_settings(), **added}


def test_training_joins_the_ray_whose_dashboard_is_named(first: LocalRay) -> None:
    assert gcs_address_at(int(first.dashboard.rpartition(":")[2])) is not None
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "a" * 32}
    assert printed_by(JOIN, RAY_ADDRESS=first.dashboard, **token) == "3.0"


def test_a_ray_that_is_closed_by_its_user_s_token_is_reached_by_the_file_alone(first: LocalRay, tmp_path: Path) -> None:
    # As `ray start` closes it: Ray's own clients send this token only with RAY_AUTH_MODE=token.
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("a" * 32)
    assert printed_by(JOIN, RAY_ADDRESS=first.dashboard, HOME=str(tmp_path)) == "3.0"
    checks = printed_by(CLUSTER_CHECKS, first.dashboard, HOME=str(tmp_path))
    assert f"✓ cluster: {first.dashboard} responds" in checks
    assert f"✓ open_dashboard: {first.dashboard} requires a token" in checks


def test_a_token_that_is_there_closes_no_ray_that_asks_for_none(ray_head: RayHead, tmp_path: Path) -> None:
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("a" * 32)
    # Workers respond to this driver, which a driver that demands a token of them waits for in vain.
    assert printed_by(SUM, RAY_ADDRESS=ray_head.address, HOME=str(tmp_path)) == "3"


@pytest.mark.long
def test_a_ray_starts_where_another_holds_the_default_port_of_agents(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        # Where it is taken already, so much the better.
        with contextlib.suppress(OSError):
            stack.enter_context(socket.create_server(("127.0.0.1", AGENT_PORT)))
        assert len(started_in(tmp_path)) == 64


@pytest.mark.long
def test_a_ray_starts_while_its_agents_come_late(tmp_path: Path) -> None:
    folders: list[Path] = []
    stopped: set[psutil.Process] = set()

    def stop_agents() -> None:
        while len(stopped) < 2:
            for process in processes_of(folders[0]):
                with contextlib.suppress(psutil.Error, IndexError):
                    # The raylet has their command lines among its arguments.
                    if process.name() != "raylet" and process.cmdline()[2].endswith(AGENTS):
                        process.suspend()
                        stopped.add(process)

    ray = start_ray(num_cpus=1, environment=os.environ, announce=folders.append, meanwhile=stop_agents)
    try:
        # Ray says it of a node that has registered, which it would not until its agents have written their ports.
        wait_until(lambda: "Ray runtime started" in (ray.folder / "start.log").read_text(), "the node")
        for process in stopped:
            process.resume()
        ray.wait_for_agent()
        session = ray.folder / "ray" / "session_latest"
        assert len({path.name.rpartition("_")[0] for path in session.glob("*_port_*")}) == 5, "no file has another name"
    finally:
        ray.stop()


def test_a_ray_ends_with_its_driver_however_that_ends(tmp_path: Path) -> None:
    folder = tempfile.mkdtemp(prefix="k-", dir="/tmp")
    killed = subprocess.run(
        [sys.executable, "-c", KILLED],
        env=environment(HOME=str(tmp_path), RAY_TMPDIR=folder),
        cwd=REPOSITORY,
        check=False,
        timeout=300,
    )
    assert killed.returncode == -signal.SIGKILL
    (left,) = Path(folder).iterdir()
    _, alive = psutil.wait_procs(processes_of(left), timeout=60)
    assert alive == []
    assert processes_of(left) == []
