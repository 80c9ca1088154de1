"""MLflow with its own server, which is not there during the run's first attempt."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.runtime_env.ray_node import wait_for
from tests.trainers.run_folder.writers import EXPERIMENT
from tests.trainers.training.trackers.tracked_attempts import LOSSES, SCORES, TEST
from tests.trainers.training.trackers.trackers_environment import installed, run_attempts
from trainers.distributed.local_ray import free_ports
from trainers.training.trackers.known_trackers import RUN

pytestmark = pytest.mark.long


def test_a_server_has_one_run_of_all_attempts(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    url, folder = f"http://127.0.0.1:{port}", tmp_path / "run"
    variables = {"MLFLOW_TRACKING_URI": url, "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
    said = run_attempts("mlflow", folder, "killed", **variables)
    assert said.count("training.report_to: mlflow does not accept metrics now") == 1
    with served(port, tmp_path), httpx.Client(base_url=f"{url}/api/2.0/mlflow") as api:
        assert run_attempts("mlflow", folder, "killed", **variables) == ""
        killed = the_run(api)
        assert killed["info"]["status"] == "KILLED"
        assert run_attempts("mlflow", folder, "resumed", **variables) == ""
        finished = the_run(api)
        run_id = finished["info"]["run_id"]
        assert (run_id, finished["info"]["status"]) == (killed["info"]["run_id"], "FINISHED")
        assert {"key": RUN, "value": EXPERIMENT["id"]} in finished["data"]["tags"]
        assert {"key": "training.learning_rate", "value": "0.0001"} in finished["data"]["params"]
        for name, points in (("train/loss", LOSSES), ("eval/wer", SCORES), ("test/wer", TEST)):
            history = api.get("/metrics/get-history", params={"run_id": run_id, "metric_key": name}).json()
            assert [(metric["step"], metric["value"]) for metric in history["metrics"]] == points


@contextmanager
def served(port: int, folder: Path) -> Iterator[None]:
    """A server, with its database in a folder."""
    command = [installed("mlflow"), "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    store = ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db"]
    # It would start eight more processes for them.
    environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    log = folder / "server.log"
    with log.open("wb") as output:
        server = subprocess.Popen([*command, *store], stdout=output, stderr=output, cwd=folder, env=environment)
    try:
        wait_for(lambda: is_up(f"http://127.0.0.1:{port}/health"), "answer of MLflow's server", log)
        yield
    finally:
        server.terminate()
        server.wait(60)


def is_up(url: str) -> bool:
    with suppress(httpx.HTTPError):
        return httpx.get(url).is_success
    return False


def the_run(api: httpx.Client) -> Any:
    """The only run of the server."""
    experiment = api.get("/experiments/get-by-name", params={"experiment_name": "rayscribe"}).json()["experiment"]
    found = api.post("/runs/search", json={"experiment_ids": [experiment["experiment_id"]]}).json()["runs"]
    (run,) = found
    return run
