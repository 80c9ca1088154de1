"""A service's backend with runs in every state, and a real HTTP server in front of it."""

import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from jobs.api.server.app import make_app
from jobs.api.server.connection_limits import LimitedProtocol
from jobs.api.server.dependencies import Backend
from jobs.api.server.process import open_port
from jobs.clusters.ray_jobs import RayJobs
from jobs.clusters.registry import CachingClusters
from jobs.errors import ClusterError
from jobs.ledger import Ledger
from jobs.model import AttemptState, Cause, Run, RunState
from jobs.scheduler.limits import Limits, QueuePart, QueuesConfig
from jobs.service.package_store import PackageStore
from jobs.service.service import Service
from tests.jobs.ledger.builders import TIMEOUT_S, make_attempt, move_to
from tests.jobs.sample import CONTENT, sample_run
from trainers.config.schema import TrainConfig

ADDRESS = "http://127.0.0.1:8265"
QUEUES = QueuesConfig(
    storages=["/mnt/runs", "s3://bucket/runs"], queues={"small": QueuePart(max_gpus=4, per_user=Limits(max_running=1))}
)


def no_cluster(address: str) -> RayJobs:
    """A cluster that is down."""
    raise ClusterError(f"{address}: no response; is the cluster's head alive?")


@dataclass(frozen=True)
class BackendHarness:
    """A backend, and what tests need to use it.

    Attributes:
        backend: The backend.
        folder: Folder of its files.
        token: Ana's token.
    """

    backend: Backend
    folder: Path
    token: str

    @property
    def ledger(self) -> Ledger:
        """The ledger."""
        return self.backend.ledger

    def add(self, run_id: str, **fields: Any) -> Run:
        """Submits a run whose folder is on this machine."""
        values = {"id": run_id, "address": ADDRESS, "run_folder": f"{self.folder}/runs/{run_id}", **fields}
        return self.ledger.requests.add_run(sample_run(**values), text=f"submitted by {values.get('user', 'ana')}")

    def add_in_state(self, run_id: str, state: RunState, **fields: Any) -> Run:
        """Submits a run and moves it to a state, with the attempt that this needs."""
        run = self.add(run_id, **fields)
        if state == RunState.QUEUED:
            return run
        now_s = run.submitted_s + 30
        attempt = make_attempt(run_id, created_s=now_s, gang=run.gang)
        with self.ledger.write() as writer:
            writer.open_attempt(attempt)
            if state.ended or state.waiting:
                cause = Cause.SUCCEEDED if state == RunState.SUCCEEDED else Cause.NODE_LOST
                writer.change_attempt(run_id, 1, state=AttemptState.ENDED, ended_s=now_s + 3600, cause=cause)
        return move_to(self.ledger, move_to(self.ledger, run, RunState.SETTING_UP, attempt=1), state)

    def fill(self) -> dict[RunState, str]:
        """A run in every state; returns their names."""
        names = {}
        for index, state in enumerate(RunState):
            name = f"run-{state.lower().replace('_', '-')}"
            self.add_in_state(name, state, tags=["every"], submitted_s=1000.0 + index, queued_s=1000.0 + index)
            names[state] = name
        return names


@contextmanager
def open_harness(folder: Path, database: str | None = None) -> Iterator[BackendHarness]:
    """A backend for the duration of the block; its cluster is down."""
    ledger = Ledger.open(database or f"sqlite:///{folder / 'ledger.db'}")
    packages = PackageStore(folder / "packages")
    clusters = CachingClusters(connect=no_cluster)
    service = Service(ledger, clusters, packages, QUEUES, user="nobody", addresses=[ADDRESS])
    backend = Backend(service, ledger, QUEUES, packages.folder, lambda: True)
    try:
        yield BackendHarness(backend, folder, ledger.tokens.add("ana", 1.0))
    finally:
        ledger.close()


@contextmanager
def served(app: ASGIApp, port: int = 0) -> Iterator[str]:
    """Serves an app on loopback for the duration of the block; yields its URL."""
    config = uvicorn.Config(
        app, http=LimitedProtocol, log_config=None, access_log=False, ws="none", timeout_graceful_shutdown=5
    )
    server = uvicorn.Server(config)
    with open_port("127.0.0.1", port) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        end = time.monotonic() + TIMEOUT_S
        while not server.started:
            assert thread.is_alive() and time.monotonic() < end, "the server did not start"
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(TIMEOUT_S)
            assert not thread.is_alive()


@contextmanager
def served_backend(folder: Path) -> Iterator[tuple[BackendHarness, str]]:
    """A backend with runs in every state, served with tokens, and its URL."""
    with open_harness(folder) as harness:
        harness.fill()
        with served(make_app(harness.backend)) as url:
            yield harness, url


def make_package(path: Path, content: bytes = b"print('hello')\n") -> str:
    """Writes the smallest package there is; returns its SHA-256."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("task.py", content)
    return sha256(path.read_bytes()).hexdigest()


def config_of(name: str, **job: Any) -> dict[str, Any]:
    """A complete config that the service accepts."""
    content = {**CONTENT, "run": {**CONTENT["run"], "name": name}}
    return {**TrainConfig.model_validate(content).model_dump(mode="json"), "job": job}
