"""A request whose parts disagree: refused, or harmless because one config decides everything."""

import json
import re
import zipfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import create_engine, text

from jobs.api.protocol import IDEMPOTENCY_KEY
from jobs.clusters.registry import Clusters
from jobs.ledger.database import parse
from jobs.model import Run
from jobs.service.controller import Controller
from jobs.submission.ray_request import SubmitRequest
from tests.jobs.api.backend_harness import QUEUES, BackendHarness, config_of
from tests.jobs.clusters.fake_cluster import FakeCluster
from trainers.config.schema import TrainConfig
from trainers.config.submitted import CONFIG_VARIABLE, OVERRIDES_RECORD, read_record, read_submitted

Change = Callable[[dict[str, Any]], None]


@pytest.fixture
def package(http: httpx.Client, tmp_path: Path) -> str:
    """A package that the service has."""
    return upload(http, tmp_path, {"task.py": "print('hello')\n"})


def upload(http: httpx.Client, folder: Path, files: dict[str, str]) -> str:
    path = folder / "upload.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    name = sha256(path.read_bytes()).hexdigest()
    http.put(f"/v1/packages/{name}", content=path.read_bytes()).raise_for_status()
    return name


def body_of(package: str, **job: Any) -> dict[str, Any]:
    config = config_of("one", **job)
    config["scaling"] = {"num_workers": 1}
    return {"config": config, "package": package}


def at(path: str, value: Any) -> Change:
    """Sets a field of the body."""

    def change(body: dict[str, Any]) -> None:
        *parents, last = path.split(".")
        for key in parents:
            body = body.setdefault(key, {})
        body[last] = value

    return change


def both(first: Change, second: Change) -> Change:
    """Two changes."""

    def change(body: dict[str, Any]) -> None:
        first(body)
        second(body)

    return change


REFUSED: dict[str, tuple[Change, str]] = {
    "overrides": (at("overrides", ["scaling.num_workers=64"]), "body: unknown field"),
    "a recipe": (at("spec_path", "specs/other.yaml"), "body: unknown field"),
    "an unknown key": (at("entrypoint", "python other.py"), "body: unknown field"),
    "a name next to the config's": (at("name", "two"), "body: unknown field"),
    "a gang next to the config's": (at("gang", {"num_workers": 64}), "body: unknown field"),
    "a run folder next to the config's": (at("run_folder", "/elsewhere"), "body: unknown field"),
    "an unknown key of the config": (at("config.scaling.num_worker", 64), "did you mean scaling.num_workers?"),
    "a dotted key": (at("config.scaling.num_workers=64", 1), "unknown key"),
    "an unknown part": (at("config.overrides", ["scaling.num_workers=64"]), "overrides: unknown key"),
    "a queue outside of job": (at("config.queue", "small"), "did you mean job.queue?"),
    "another server for the job's storage": (
        both(
            at("config.run.storage_path", "s3://bucket/runs"),
            at("config.job.runtime_env.env_vars", {"AWS_ENDPOINT_URL_S3": "http://10.9.8.7:9000"}),
        ),
        "AWS_ENDPOINT_URL_S3 would set the server of run.storage_path for the job only",
    ),
    "another account for the job's storage": (
        both(
            at("config.run.storage_path", "az://container/runs"),
            at("config.job.runtime_env.env_vars", {"AZURE_STORAGE_ACCOUNT_NAME": "other"}),
        ),
        "AZURE_STORAGE_ACCOUNT_NAME would set the server of run.storage_path for the job only: set run.az_account",
    ),
    "no name": (at("config.run.name", None), "run.name: missing"),
    "a name that is a path": (at("config.run.name", "../two"), "run.name: must begin with"),
    "no storage path": (at("config.run.storage_path", None), "run.storage_path: null means ~/ray_results"),
    "a relative storage path": (at("config.run.storage_path", "runs"), "run.storage_path is runs, a relative path"),
    "a storage path of some home": (at("config.run.storage_path", "~/runs"), "run.storage_path: ~/runs is another"),
    "a storage path that nodes resolve": (
        both(
            at("config.run.storage_path", "/mnt/${TEAM}"),
            at("config.job.runtime_env.env_vars.TEAM", "speech"),
        ),
        "run.storage_path: /mnt/${TEAM} is known on the nodes only",
    ),
    "a relative cache": (at("config.data.cache_dir", "cache"), "data.cache_dir is cache, a relative path"),
    "data of some home": (at("config.data.train", "~/train.csv"), "data.train: ~/train.csv is another folder"),
    "a variable of the service": (at("config.data.train", "${HOME}/train.csv"), "names the variable HOME"),
    "a config of its own": (at(f"config.job.runtime_env.env_vars.{CONFIG_VARIABLE}", "{}"), "is set by Rayscribe"),
    "an attempt of its own": (at("config.job.runtime_env.env_vars.RAYSCRIBE_ATTEMPT", "7"), "is set by Rayscribe"),
    "a config that is a secret": (
        at(f"config.job.runtime_env.secrets.{CONFIG_VARIABLE}", {"file": "/tmp/other.json"}),
        "is set by Rayscribe",
    ),
    "waiting for itself": (at("config.job.depends_on", ["one"]), "one depends on itself"),
    "no number": (at("config.scaling.num_workers", "many"), "scaling.num_workers"),
    "half a number": (at("config.scaling.num_workers", 1.5), "scaling.num_workers"),
    "a config that is a text": (at("config", json.dumps({"run": {}})), "body.config"),
    "a config that is larger than a variable": (
        at("config.training.training_args", {"label_names": ["x" * 1000] * 130}),
        "the limit is 120000",
    ),
    "a recipe's path for a package": (at("package", "specs/sr.yaml"), "body.package"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_disagrees_is_refused_with_the_fix(name: str, reader: httpx.Client) -> None:
    change, said = REFUSED[name]
    body = body_of("0" * 64)
    change(body)
    response = reader.post("/v1/runs", json=body)
    assert response.status_code == 422, response.text
    assert said in response.json()["error"]["message"]
    assert {reader.get(f"/v1/runs/{run_id}").status_code for run_id in ("one", "two")} == {404}


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_number_that_json_does_not_have_is_refused(number: str, reader: httpx.Client) -> None:
    content = json.dumps(body_of("0" * 64)).replace('"learning_rate": 1e-05', f'"learning_rate": {number}')
    assert number in content
    response = reader.post("/v1/runs", content=content, headers={"Content-Type": "application/json"})
    assert response.status_code in (400, 422), response.text
    assert reader.get("/v1/runs/one").status_code == 404


def test_the_same_key_with_another_config_is_refused(http: httpx.Client, package: str) -> None:
    body = body_of(package)
    http.post("/v1/runs", json=body, headers={IDEMPOTENCY_KEY: "k"}).raise_for_status()
    body["config"]["scaling"]["num_workers"] = 2
    assert http.post("/v1/runs", json=body, headers={IDEMPOTENCY_KEY: "k"}).status_code == 409


class Submitted:
    """A run that was made from a body, and the request that its cluster received."""

    def __init__(self, harness: BackendHarness, response: httpx.Response):
        assert response.status_code == 201, response.text
        self.run = Run.model_validate(response.json())
        cluster = FakeCluster(cpus=100.0)
        clusters = Clusters(connect=lambda _: cluster)
        lease = harness.ledger.lease("test", ttl_s=0.0)
        packages = harness.backend.service._packages
        Controller(harness.ledger, clusters, packages, QUEUES, lease=lease).round()
        self.request: SubmitRequest = cluster.jobs[f"{self.run.id}-a1"].request
        engine = create_engine(parse(harness.ledger.url))
        with engine.connect() as connection:
            statement = text("SELECT config FROM requests WHERE run_id = :run_id")
            self.stored: str = connection.execute(statement, {"run_id": self.run.id}).scalar_one()
        engine.dispose()

    def config(self, working_dir: Path, **environment: str) -> TrainConfig:
        """The config that task.py resolves on a node with these variables."""
        config = read_submitted({**environment, **self.request.runtime_env["env_vars"]}, working_dir)
        assert isinstance(config, TrainConfig)
        return config


def nothing(body: dict[str, Any]) -> None:
    """The request as it is."""


HARMLESS: dict[str, Change] = {
    "nothing": nothing,
    "numbers as texts": at("config.scaling.num_workers", "2"),
    "spaces around a name": at("config.run.name", " one "),
    "a bucket in the job's environment": at("config.job.runtime_env.env_vars.BUCKET_URI", "s3://elsewhere"),
    "flags in the job's environment": at("config.job.runtime_env.env_vars.RAYSCRIBE_NUM_WORKERS", "64"),
    "a priority as a text": at("config.job.priority", "3"),
    "quotes, dollars and other alphabets": at(
        "config.training.training_args", {"label_names": ["it's", '"', "$HOME ${HOME}", "говор", "\\u0024", "\\"]}
    ),
    "a relative path in the package": at("config.data.validation", "data/valid.csv"),
    "a variable of the job": both(
        at("config.data.train", "${SPEECH}/train.csv"),
        at("config.job.runtime_env.env_vars.SPEECH", "/speech"),
    ),
}


@pytest.mark.parametrize("name", HARMLESS)
@pytest.mark.integration
def test_what_was_admitted_is_what_runs_byte_for_byte(
    name: str, http: httpx.Client, harness: BackendHarness, package: str, tmp_path: Path
) -> None:
    body = body_of(package)
    HARMLESS[name](body)
    submitted = Submitted(harness, http.post("/v1/runs", json=body))
    run, request = submitted.run, submitted.request
    assert request.runtime_env["env_vars"][CONFIG_VARIABLE] == submitted.stored
    assert request.entrypoint == "python task.py --attempt 1"
    assert json.loads(submitted.stored) == run.config
    config = submitted.config(tmp_path, BUCKET_URI="s3://elsewhere", SPEECH="/of the node", HOME="/of the node")
    resolved = json.loads(submitted.stored)
    for field, value in resolved["data"].items():
        if value == "data/valid.csv":
            resolved["data"][field] = str(tmp_path / value)
        elif value == "${SPEECH}/train.csv":
            resolved["data"][field] = "/speech/train.csv"
    assert config == TrainConfig.model_validate(resolved)
    assert (config.run.name, config.scaling.num_workers) == (run.id, run.gang.num_workers)
    assert f"{config.run.storage_path}/{config.run.name}" == run.run_folder == request.run_folder
    assert (run.queue, run.priority) == (config.job["queue"], config.job["priority"])


def test_a_key_that_stands_twice_is_refused_however_many_others_there_are(http: httpx.Client, package: str) -> None:
    twice = '"num_workers": 64, "num_workers": 2'
    content = json.dumps(body_of(package)).replace('"num_workers": 1', twice)
    many = ", ".join(f'"k{number}": 1' for number in range(60_000))
    for body in (content, f'{{"config": {{}}, {content[1:]}', f"{{{many}, {twice}}}"):
        response = http.post("/v1/runs", content=body, headers={"Content-Type": "application/json"})
        assert response.status_code == 422
        assert re.search("duplicate key '(num_workers|config)'", response.json()["error"]["message"])


def test_what_lies_in_the_package_changes_nothing_but_the_record(
    http: httpx.Client, harness: BackendHarness, tmp_path: Path
) -> None:
    files = {
        "task.py": "",
        OVERRIDES_RECORD: '["scaling.num_workers=64", {"scaling": 64}]',
        "config.yaml": "scaling: {num_workers: 64}",
        ".rayscribe/config.json": '{"scaling": {"num_workers": 64}}',
    }
    submitted = Submitted(harness, http.post("/v1/runs", json=body_of(upload(http, tmp_path, files))))
    for name, content in files.items():
        path = tmp_path / "working_dir" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    assert submitted.config(tmp_path / "working_dir") == TrainConfig.model_validate(submitted.run.config)
    assert read_record(tmp_path / "working_dir") == ["scaling.num_workers=64"]
