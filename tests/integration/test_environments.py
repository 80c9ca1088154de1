"""Environments and secrets through the whole service, on a Ray node whose environment and Python the test decides."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml

from jobs.api.client import Client
from jobs.clusters.ray_jobs import RayJobs
from jobs.model import Cause, RunState
from jobs.scheduler.limits import QueuesConfig
from jobs.service.controller import SETUP_BYTES, SETUP_LINES
from jobs.service.failure_causes import line_of_setup
from jobs.submission.assemble import collect_bundle, pack_bundle, run_request_of
from jobs.submission.job_spec import load_spec
from tests.integration.controller_driver import ControllerDriver
from tests.integration.forked_process import REPOSITORY
from tests.integration.short_jobs import RECIPE, Workspace
from tests.runtime_env.package_index import PackageIndex, serving
from tests.runtime_env.ray_node import RayNode, ray_node, thin_python, wait_for
from trainers.distributed.local_ray import free_ports

# Found nowhere but where it belongs.
SECRET = "wandb-secret-5fX2kQ9vTzPq"
USES_SECRET = """
import hashlib, os, sys, time
from trainers.config.secrets import resolve_secrets

resolve_secrets(os.environ)
print("digest", hashlib.sha256(os.environ["WANDB_API_KEY"].encode()).hexdigest(), flush=True)
time.sleep(3)
"""


@pytest.fixture(scope="module")
def index() -> Iterator[PackageIndex]:
    """A package index that has nothing."""
    with serving(PackageIndex("index-user", "index-password")) as index:
        yield index


@pytest.fixture(scope="module")
def node(index: PackageIndex, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayNode]:
    """A Ray head whose environment knows the index's credentials."""
    environment = {
        "INDEX_USER": index.user,
        "INDEX_PASSWORD": index.password,
        "PIP_RETRIES": "0",
        "RUNTIME_ENV_RETRY_TIMES": "1",
    }
    with ray_node(thin_python(tmp_path_factory.mktemp("node") / "venv"), environment) as node:
        yield node


@pytest.fixture
def drive(node: RayNode, tmp_path: Path) -> Iterator[ControllerDriver]:
    """A ledger, and a controller on the node."""
    workspace = Workspace(tmp_path, node.address, QueuesConfig())
    yield ControllerDriver(workspace)
    workspace.close()


def needs(index: PackageIndex, package: str) -> str:
    """The override that has a package installed."""
    return f'job.runtime_env={{"pip": ["{package}"], "index_url": "{index.url("${INDEX_USER}:${INDEX_PASSWORD}")}"}}'


@pytest.mark.long
def test_a_package_that_does_not_exist_is_a_failure_of_the_environment_and_is_not_tried_again(
    drive: ControllerDriver, index: PackageIndex
) -> None:
    drive.workspace.short("missing", needs(index, "no-such-package==9.9"))
    run = drive.until_ended("missing")
    assert run.state == RunState.FAILED
    assert drive.causes("missing") == [Cause.ENVIRONMENT]
    assert "No matching distribution found for no-such-package==9.9" in run.reason
    assert "job.runtime_env" in run.reason
    # What a run's reason has while Ray tries again.
    log_end = RayJobs(drive.workspace.address).setup_log_end("missing-a1", SETUP_LINES, SETUP_BYTES)
    assert "No matching distribution found for no-such-package==9.9" in line_of_setup(log_end.decode())


@pytest.mark.long
def test_a_run_is_stopped_while_its_environment_is_being_made(drive: ControllerDriver, index: PackageIndex) -> None:
    index.gate.clear()
    try:
        drive.workspace.short("pending", needs(index, "anything"), ms=600_000)
        drive.until(lambda: drive.workspace.ledger.run("pending").state == RunState.SETTING_UP, "setting up")
        drive.until(lambda: drive.workspace.ledger.attempts("pending")[0].submitted_s is not None, "submission")
        stopping = drive.workspace.service.stop("pending")
        assert stopping.state == RunState.SETTING_UP
        drive.until(lambda: drive.workspace.ledger.run("pending").reason.startswith("stopping,"), "word of the stop")
    finally:
        index.gate.set()
    run = drive.until_ended("pending")
    assert run.state == RunState.STOPPED
    assert run.reason == "stopped; no checkpoint was made"
    assert not drive.workspace.records(), "its entrypoint never ran"


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository whose task.py uses a secret that lies in a file on the node."""
    root = tmp_path / "repository"
    (root / "jobs/specs").mkdir(parents=True)
    shutil.copytree(REPOSITORY / "trainers", root / "trainers", ignore=shutil.ignore_patterns("__pycache__"))
    (root / "task.py").write_text(USES_SECRET)
    (tmp_path / "secret").write_text(f"{SECRET}\n")
    monkeypatch.chdir(root)
    return root


@pytest.fixture
def service(node: RayNode, tmp_path: Path) -> Iterator[str]:
    """`rayscribe serve` in a process of its own."""
    (port,) = free_ports(1)
    command = [sys.executable, "-c", "import sys; from jobs.cli import main; sys.exit(main())", "serve"]
    command += ["--port", str(port), "--address", node.address]
    environment = {**os.environ, "RAYSCRIBE_HOME": str(tmp_path / "home")}
    with (tmp_path / "service.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=REPOSITORY, env=environment, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"
    wait_for(lambda: _answers(url), "service", tmp_path / "service.log")
    yield url
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0


def test_a_secret_is_used_on_the_node_and_leaves_no_trace_anywhere_else(
    node: RayNode, service: str, repository: Path, tmp_path: Path
) -> None:
    recipe = write_recipe(repository, tmp_path, {"secrets": {"WANDB_API_KEY": {"file": str(tmp_path / "secret")}}})
    found = load_spec(recipe, [], here=repository, environment={}, now=datetime.now(UTC))
    bundle = collect_bundle(found)
    package = pack_bundle(bundle, tmp_path / "outbox")
    seen: list[str] = []
    with Client(service, token=(tmp_path / "home/token").read_text().strip()) as client:
        client.put_package(package.sha256, package.path)
        client.submit(run_request_of(found, bundle, package.sha256))
        wait_for(lambda: _watch(client, seen), "end of the run")
        run = client.run("secretive")
        log = [line.text for line in client.logs("secretive", source="driver").lines]
        answers = [
            client.attempts("secretive"),
            client.events("secretive"),
            client.usage("user"),
            client.runs(),
            run,
            log,
        ]
    assert run.state == RunState.SUCCEEDED, f"{run.reason}\n{log}"
    assert any(line.startswith("digest ") for line in log), "the job had the secret"
    assert SECRET not in repr(answers)
    assert SECRET not in repr(node.client.get_job_info("secretive-a1"))
    assert not any(SECRET in line for line in seen), "the process list"
    own = {tmp_path / "secret"}
    folders = (tmp_path, node.session, node.home)
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file() and path not in own]
    assert len(files) > 50
    assert [str(path) for path in files if SECRET.encode() in path.read_bytes()] == []


def test_a_secret_that_is_written_into_a_recipe_is_refused_everywhere_without_a_trace(
    service: str, repository: Path, tmp_path: Path
) -> None:
    token = (tmp_path / "home/token").read_text().strip()
    recipe = write_recipe(repository, tmp_path, {})
    found = load_spec(recipe, [], here=repository, environment={}, now=datetime.now(UTC))
    bundle = collect_bundle(found)
    run_request = run_request_of(found, bundle, "ab" * 32).model_dump(mode="json")
    run_request["config"]["job"]["runtime_env"]["env_vars"] = {"WANDB_API_KEY": SECRET}
    answer = httpx.post(f"{service}/v1/runs", json=run_request, headers={"Authorization": f"Bearer {token}"})
    assert answer.status_code in (400, 422)
    assert "job.runtime_env.secrets" in answer.text
    assert SECRET not in answer.text
    recipe = write_recipe(repository, tmp_path, {"env_vars": {"WANDB_API_KEY": SECRET}})
    command = [sys.executable, "-c", "import sys; from jobs.cli import main; sys.exit(main())"]
    refused = subprocess.run(
        [*command, "submit", str(recipe)],
        cwd=repository,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "RAYSCRIBE_SERVICE": service, "RAYSCRIBE_TOKEN": token},
    )
    assert refused.returncode == 2, refused.stderr
    assert "job.runtime_env.secrets" in refused.stderr
    assert SECRET not in refused.stdout + refused.stderr
    kept = [path for path in (tmp_path / "home").rglob("*") if path.is_file()] + [tmp_path / "service.log"]
    assert [str(path) for path in kept if SECRET.encode() in path.read_bytes()] == []


def write_recipe(repository: Path, tmp_path: Path, runtime_env: dict[str, Any]) -> Path:
    """The micro recipe with an environment."""
    content = yaml.safe_load((REPOSITORY / RECIPE).read_text())
    content["run"] |= {"name": "secretive", "storage_path": str(tmp_path / "runs")}
    content["job"] = {"runtime_env": runtime_env}
    path = repository / RECIPE
    path.write_text(yaml.safe_dump(content))
    return path


def _watch(client: Client, seen: list[str]) -> bool:
    for process in psutil.process_iter():
        try:
            seen.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return client.run("secretive").state.ended


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/healthz").status_code == 200
    except httpx.TransportError:
        return False
