"""A ledger that version 0.1 wrote: it opens, and its runs are driven on, each with the config that it stored."""

import argparse
import json
import shlex
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from jobs.clusters.fake_cluster import FakeCluster
from jobs.clusters.registry import Clusters
from jobs.ledger import Ledger
from jobs.ledger.database import parse
from jobs.ledger.migrate import upgrade
from jobs.lifecycle import RunState
from jobs.scheduler.limits import QueuesConfig
from jobs.service.controller import Controller
from jobs.service.package_store import PackageStore
from jobs.service.service import Service
from jobs.submission.ray_request import SubmitRequest
from jobs.submission.run_request import branch
from tests.jobs.api.backend_harness import make_package
from trainers.config.overrides import apply_overrides, parse_override
from trainers.config.schema import TrainConfig
from trainers.config.submitted import CONFIG_VARIABLE, config_text

DUMP = Path(__file__).with_name("ledger_0_1.sql")
PACKAGE = "e333de4397f309a070ec2dec35b65bb5c475a290010b1f21e69d0aa94b24e55d"
ADDRESS = "http://127.0.0.1:8265"
NAMELESS = "sr-20260101-000000"


class Continued:
    """The ledger, a cluster on which its live run still runs, and a controller of this version."""

    def __init__(self, url: str, packages: PackageStore):
        self.url, self.ledger, self.cluster, self.now_s = url, Ledger.open(url), FakeCluster(cpus=20.0), 1767229200.0
        self.packages = packages
        self.clusters = Clusters(connect=lambda _: self.cluster, clock=lambda: self.now_s)

    def drive(self) -> None:
        """Rounds until all runs have ended."""
        lease = self.ledger.lease("test", ttl_s=0.0)
        controller = Controller(
            self.ledger, self.clusters, self.packages, QueuesConfig(), lease=lease, clock=lambda: self.now_s
        )
        for _ in range(30):
            controller.round()
            self.now_s += 60.0
            if all(run.state.ended for run in self.ledger.runs().runs):
                return
        raise AssertionError([(run.id, run.state, run.reason) for run in self.ledger.runs().runs])

    def request(self, submission_id: str) -> SubmitRequest:
        """What the cluster was asked for."""
        return self.cluster.jobs[submission_id].request


@pytest.fixture
def continued(ledger_url: str, tmp_path: Path) -> Iterator[Continued]:
    packages = PackageStore(tmp_path / "packages")
    sha256 = make_package(tmp_path / "upload.zip")
    packages.put(sha256, tmp_path / "upload.zip")
    script = DUMP.read_text().replace(PACKAGE, sha256)
    if ledger_url.startswith("sqlite"):
        path = Path(ledger_url.removeprefix("sqlite:///"))
        path.parent.mkdir(parents=True)
        with sqlite3.connect(path) as connection:
            connection.executescript(script)
    else:
        _restore_rows(ledger_url, script)
    harness = Continued(ledger_url, packages)
    yield harness
    harness.ledger.close()


def _restore_rows(url: str, script: str) -> None:
    """The rows alone, in tables of the first step, which is 0.1's."""
    rows = [line for line in script.splitlines() if line.startswith('INSERT INTO "')]
    rows = [row for row in rows if row.split('"')[1] not in ("alembic_version", "lease", "sqlite_sequence")]
    engine = create_engine(parse(url))
    with engine.begin() as connection:
        upgrade(connection, to="0001")
        for row in sorted(rows, key=lambda row: not row.startswith('INSERT INTO "runs"')):
            connection.exec_driver_sql(row.replace("%", "%%"))
        connection.execute(text("SELECT setval(pg_get_serial_sequence('events', 'number'), max(number)) FROM events"))
    engine.dispose()


def former_config(request: SubmitRequest) -> TrainConfig:
    """The config that 0.1's task.py makes of its arguments."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--config")
    parser.add_argument("--attempt", type=int)
    parser.add_argument("--set", action="append", default=[])
    python, task, *arguments = shlex.split(request.entrypoint)
    assert (python, task) == ("python", "task.py")
    given = parser.parse_args(arguments)
    assert given.config == "specs/sr.yaml"
    # As the recipe in the package could be: every part of it is replaced.
    recipe = {"run": {"seed": 8}, "data": {"demo": {}}, "training": {"unknown": 1}, "job": {"queue": "other"}}
    return TrainConfig.model_validate(apply_overrides(recipe, [parse_override(item) for item in given.set]))


def test_runs_attempts_events_and_tokens_are_there(continued: Continued) -> None:
    states = {run.id: (run.state, run.attempt) for run in continued.ledger.runs().runs}
    assert states == {
        "live": (RunState.SETTING_UP, 1),
        "failed": (RunState.FAILED, 1),
        "done": (RunState.SUCCEEDED, 1),
        "queued": (RunState.QUEUED, 0),
        NAMELESS: (RunState.QUEUED, 0),
    }
    assert len(continued.ledger.events(None)) == 13
    assert [token.name for token in continued.ledger.tokens.all()] == ["ana"]
    assert continued.ledger.run("queued").config["training"]["max_steps"] == 7


@pytest.mark.parametrize(("name", "storage_path"), [(NAMELESS, "/home/service/ray_results"), ("live", None)])
def test_a_storage_path_that_was_null_is_the_watched_folder_for_runs_that_have_not_begun(
    continued: Continued, name: str, storage_path: str | None
) -> None:
    run = continued.ledger.run(name)
    assert run.config["run"]["storage_path"] == storage_path
    assert run.run_folder == f"/home/service/ray_results/{name}"


def test_queued_runs_run_with_the_config_that_was_admitted(continued: Continued) -> None:
    continued.ledger.requests.request_stop("live", by="ana", at_s=continued.now_s)
    continued.ledger.requests.reopen("failed", by="ana", at_s=continued.now_s)
    continued.drive()
    for name, submission_id in (("failed", "failed-a2"), (NAMELESS, f"{NAMELESS}-a1")):
        run, request = continued.ledger.run(name), continued.request(submission_id)
        assert run.state == RunState.SUCCEEDED, run.reason
        assert former_config(request) == TrainConfig.model_validate(run.config)
        assert CONFIG_VARIABLE not in request.runtime_env["env_vars"], "0.1's task.py would not read it"
        assert request.runtime_env["env_vars"]["BUCKET_URI"] == "/elsewhere", "the overrides come after it"
        assert former_config(request).run.storage_path == run.config["run"]["storage_path"]


def test_a_run_that_begins_from_a_checkpoint_of_one_is_started_the_same_way(continued: Continued) -> None:
    service = Service(
        continued.ledger, continued.clusters, continued.packages, QueuesConfig(), user="ana", addresses=[ADDRESS]
    )
    begun = service.submit(branch(continued.ledger.run("failed"), "checkpoint-8-a1-x", lambda name: False))
    continued.ledger.requests.request_stop("live", by="ana", at_s=continued.now_s)
    continued.drive()
    config = former_config(continued.request(f"{begun.id}-a1"))
    assert config == TrainConfig.model_validate(begun.config)
    assert config.run.resume == "from:/mnt/runs/failed/checkpoints/checkpoint-8-a1-x"


def test_the_stored_text_is_the_one_that_this_version_writes(continued: Continued) -> None:
    engine = create_engine(parse(continued.url))
    with engine.connect() as connection:
        texts = connection.execute(text("SELECT config FROM requests")).scalars().all()
    engine.dispose()
    assert len(texts) == 5
    assert all(item == config_text(json.loads(item)) for item in texts)
    assert all("$" not in item and "'" not in item for item in texts)
