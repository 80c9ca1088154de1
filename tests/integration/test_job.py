"""task.py as a job, through Ray's real Jobs API, and what Ray's dashboard shows of trainings."""

import os
import shlex
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from jobs.cli.app import main
from jobs.clusters.cluster import JobInfo
from jobs.clusters.ray_jobs import RayJobs
from jobs.errors import ClusterError
from jobs.model import Gang
from jobs.submission.ray_request import SubmitRequest
from tests.integration.conftest import LOGICAL_CPUS
from tests.integration.driver_process import RayHead
from tests.integration.forked_process import REPOSITORY, ForkedProcess

TINY = """
data.demo.train_utterances=64 data.demo.validation_utterances=8 data.demo.test_utterances=8 run.name=tiny
training.max_steps=4 training.save_steps=4 training.eval_steps=2 training.logging_steps=2
""".split()  # noqa: SIM905

TIMEOUT_S = 300.0


@pytest.fixture(scope="module")
def jobs(ray_head: RayHead) -> RayJobs:
    """The Jobs API of the session's Ray."""
    return RayJobs(ray_head.dashboard)


def run_job(jobs: RayJobs, name: str, sets: list[str]) -> tuple[JobInfo, str]:
    """Runs the micro recipe with overrides, and gives back its end and its output."""
    command = [sys.executable, "task.py", "--config", "jobs/specs/whisper_micro.yaml"]
    for item in sets:
        command += ["--set", item]
    request = SubmitRequest(
        submission_id=f"test-job-{name}",
        address=jobs.address,
        entrypoint=shlex.join(command),
        runtime_env={"working_dir": str(REPOSITORY)},
        metadata={},
        gang=Gang(num_workers=2, resources_per_worker={"CPU": 1.0}),
        run_folder="",
        resume="",
    )
    assert jobs.submit(request)
    assert not jobs.submit(request), "submitted twice, started once"
    end = time.monotonic() + TIMEOUT_S
    while not (job_info := jobs.job_info(request.submission_id)).ended:
        assert time.monotonic() < end, f"{name} has not ended in {TIMEOUT_S} s"
        time.sleep(0.2)
    return job_info, jobs.log(request.submission_id, 0, 10_000_000).decode()


@pytest.mark.parametrize("variable", ["RAY_API_SERVER_ADDRESS", "RAY_ADDRESS"])
def test_the_cluster_that_is_named_is_asked_whatever_the_environment_says(
    ray_head: RayHead, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "http://127.0.0.1:9")
    jobs = RayJobs(ray_head.dashboard)
    assert jobs.capacity({}).total["CPU"] == LOGICAL_CPUS
    assert isinstance(jobs.job_infos(), dict)
    assert jobs.pending_bundles("01000000") == []
    monkeypatch.setenv(variable, ray_head.dashboard)
    with pytest.raises(ClusterError, match=r"http://127\.0\.0\.1:9"):
        RayJobs("http://127.0.0.1:9")


def ranks_shown(head: RayHead, name: str) -> list[int]:
    """The ranks of a finished training in Ray Train's tab, once that shows it; Ray's page asks the same."""
    end = time.monotonic() + TIMEOUT_S
    while True:
        answer = httpx.get(f"{head.dashboard}/api/train/v2/runs/v1", timeout=60).raise_for_status().json()
        shown: Mapping[str, Any] = next((run for run in answer["train_runs"] if run["name"] == name), {})
        if shown.get("status") == "FINISHED":
            (attempt,) = shown["attempts"]
            return sorted(worker["world_rank"] for worker in attempt["workers"])
        assert time.monotonic() < end, f"{name}: {shown}"
        time.sleep(0.5)


def test_a_job_trains_on_two_workers_and_ends_with_its_score(jobs: RayJobs, ray_head: RayHead, tmp_path: Path) -> None:
    end, output = run_job(jobs, "two", [*TINY, f"run.storage_path={tmp_path}", "scaling.num_workers=2"])
    assert end.status == "SUCCEEDED", output
    assert output.strip().splitlines()[-1].startswith("WER ")
    assert output.strip().splitlines()[-1].endswith(f"on test (8 utterances) · normalizer basic 1 · {tmp_path}/tiny")
    assert output.count("step 4/4 · validation WER") == 1, "each line is shown once, not once a worker"
    assert (tmp_path / "tiny/model/model.safetensors").is_file()
    assert ranks_shown(ray_head, "tiny-a1") == [0, 1]


@pytest.mark.long
def test_the_dashboard_shows_a_training_by_the_command(ray_head: RayHead, tmp_path: Path) -> None:
    sets = [item for item in TINY if not item.startswith("run.name")]
    sets += [f"run.storage_path={tmp_path}", "run.name=by-command", "scaling.num_workers=1"]
    arguments = [argument for item in sets for argument in ("--set", item)]
    log, environment = tmp_path / "by-command.log", {**os.environ, "RAY_ADDRESS": ray_head.address}
    command = ["train", "jobs/specs/whisper_micro.yaml", *arguments]
    assert ForkedProcess(main, command, environment=environment, log=log).wait(TIMEOUT_S) == 0, log.read_text()
    assert ranks_shown(ray_head, "by-command-a1") == [0]


def test_a_fault_ends_the_job_with_its_own_exit_code_and_one_message(jobs: RayJobs, tmp_path: Path) -> None:
    too_many, output = run_job(jobs, "too-many", [*TINY, f"run.storage_path={tmp_path}", "scaling.num_workers=99"])
    assert (too_many.status, too_many.exit_code) == ("FAILED", 6)
    assert "scaling.num_workers 99 × 1 CPU = 99 CPU, but the cluster has 8" in output
    assert "Traceback" not in output
