"""What who watches a cluster is shown of real trainings: Ray Train's tab of the dashboard."""

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx

from jobs.cli.app import main
from jobs.clusters.ray_jobs import RayJobs
from tests.integration.driver_process import TIMEOUT_S, RayHead
from tests.integration.forked_process import ForkedProcess
from tests.integration.test_job import TINY, run_job


def train_runs(head: RayHead) -> dict[str, Mapping[str, Any]]:
    """The runs that Ray Train's tab shows, by name; Ray's page asks the same."""
    answer = httpx.get(f"{head.dashboard}/api/train/v2/runs/v1", timeout=60).raise_for_status().json()
    return {run["name"]: run for run in answer["train_runs"]}


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Waits for a condition."""
    end = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < end, f"no {what} in {TIMEOUT_S:g} s"
        time.sleep(0.5)


def test_the_dashboard_shows_a_training_that_was_submitted_as_a_job_and_one_by_the_command(
    ray_head: RayHead, tmp_path: Path
) -> None:
    sets = [item for item in TINY if not item.startswith("run.name")]
    sets += [f"run.storage_path={tmp_path}", "scaling.num_workers=1", "scaling.resources_per_worker.CPU=1"]
    end, output = run_job(RayJobs(ray_head.dashboard), "watched", [*sets, "run.name=by-job"])
    assert end.status == "SUCCEEDED", output
    arguments = [argument for item in [*sets, "run.name=by-command"] for argument in ("--set", item)]
    log, environment = tmp_path / "by-command.log", {**os.environ, "RAY_ADDRESS": ray_head.address}
    command = ["train", "jobs/specs/whisper_micro.yaml", *arguments]
    assert ForkedProcess(main, command, environment=environment, log=log).wait(TIMEOUT_S) == 0, log.read_text()
    names = {"by-job-a1", "by-command-a1"}
    wait_until(
        lambda: {n for n, r in train_runs(ray_head).items() if r["status"] == "FINISHED"} >= names, "end of both"
    )
    for name in names:
        (attempt,) = train_runs(ray_head)[name]["attempts"]
        assert [worker["world_rank"] for worker in attempt["workers"]] == [0]
