"""Every way in which an attempt can end, made for real, and what its exit code, its status and its logs say of it."""

import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jobs.clusters.ray_jobs import RayJobs
from jobs.model import Gang
from jobs.submission.ray_request import SubmitRequest
from tests.integration.driver_process import TIMEOUT_S, RayHead, Run
from tests.integration.forked_process import REPOSITORY
from tests.integration.training_trees import write_recipe
from trainers.run_folder.attempt_status import Phase, read_status, worker_logs
from trainers.run_folder.layout import RunFolder

MAX_STEPS = 40


@pytest.fixture
def recipe(tones: Path, tmp_path: Path) -> Path:
    """Dropout, so that a step that is repeated otherwise than before would show."""
    changes = {
        "run.max_failures": 0,
        "model.d_model": 32,
        "model.encoder_layers": 2,
        "training.max_steps": MAX_STEPS,
        "training.save_steps": 20,
        "training.logging_steps": 2,
        "training.per_device_train_batch_size": 8,
    }
    return write_recipe(tmp_path / "recipe.yaml", tones, changes)


@pytest.fixture
def run(ray_head: RayHead, recipe: Path, tmp_path: Path) -> Run:
    """A run on two workers of the session's Ray."""
    return Run(ray_head, "ends", str(tmp_path / "runs"), recipe, ["scaling.num_workers=2"], tmp_path / "driver.log")


def ends(run: Run) -> tuple[int, str]:
    """The driver's exit code, and all that it said."""
    assert run.driver is not None
    code = run.driver.wait(TIMEOUT_S)
    return code, run.log.read_text()


def status(run: Run, attempt: int = 1) -> dict[str, Any]:
    """What an attempt wrote last."""
    return read_status(RunFolder(run.folder), attempt) or {}


def poll(condition: Callable[[], bool], what: str) -> None:
    """Waits for a condition."""
    end = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < end, f"no {what} in {TIMEOUT_S} s"
        time.sleep(0.05)


def job_of(run: Run) -> SubmitRequest:
    """A run as attempt 1 of a service, which leaves it a minute for its last checkpoint."""
    command = [sys.executable, "task.py", "--config", str(run.recipe), "--attempt", "1"]
    own = (f"run.name={run.name}", f"run.storage_path={run.storage_path}", f"data.cache_dir={run.storage_path}/other")
    for item in (*run.sets, *own):
        command += ["--set", item]
    return SubmitRequest(
        submission_id="test-stopped-job",
        address=run.head.dashboard,
        entrypoint=shlex.join(command),
        runtime_env={"working_dir": str(REPOSITORY), "env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": "60"}},
        metadata={},
        gang=Gang(num_workers=2, resources_per_worker={"CPU": 1.0}),
        run_folder="",
        resume="",
    )


def said_by(jobs: RayJobs, request: SubmitRequest) -> str:
    """All that a job's driver printed."""
    return jobs.log(request.submission_id, 0, 10_000_000).decode()


def weights(run: Run) -> tuple[int, str]:
    """Step and SHA-256 of the newest checkpoint's weights."""
    last = run.checkpoints()[-1]
    return last.step, last.files["model.safetensors"]["sha256"]


@pytest.mark.long
def test_a_killed_worker(run: Run) -> None:
    run.start()
    run.wait_for(lambda: run.reached(3), "step 3")
    run.kill_worker()
    code, said = ends(run)
    assert code == 8
    assert "error: training: the process of a worker died" in said
    assert "may have run out of memory" in said
    assert "Traceback" not in said
    assert status(run)["phase"] == Phase.ENDED
    assert "the process of a worker died" in status(run)["detail"]


@pytest.mark.long
def test_what_would_fail_again_is_not_tried_again(run: Run) -> None:
    """Only the workers build an optimizer, so only they find that its arguments are no names and values."""
    persistent = replace(run, sets=[*run.sets, "run.max_failures=5", "training.training_args.optim_args=nonsense"])
    persistent.start()
    code, said = ends(persistent)
    assert code == 1
    assert said.count("training failed: ValueError: ") == 1
    assert "the workers restart" not in said
    assert "Traceback" not in said
    logs = worker_logs(RunFolder(run.folder), 1)
    assert sorted(rank for rank, _, _ in logs) == [0, 1]
    for _, _, key in logs:
        assert "ValueError: " in run.folder.read_bytes(key).decode()


def test_a_stop_before_the_first_worker_ends_at_once(run: Run) -> None:
    waiting = replace(run, sets=["scaling.num_workers=6"])
    waiting.start()
    waiting.wait_for(lambda: status(run).get("phase") == Phase.WAITING_FOR_RESOURCES, "request for workers")
    assert status(run)["detail"] == "6 workers × (1 CPU)"
    assert waiting.driver is not None
    waiting.driver.terminate()
    code, said = ends(waiting)
    assert code == 143
    assert "stopped; the prepared data stays in " in said
    assert "Traceback" not in said
    assert status(run)["detail"].startswith("stopped; the prepared data stays in ")


@pytest.mark.long
def test_a_stopped_job_leaves_a_checkpoint_and_ends_with_the_undisturbed_weights(run: Run) -> None:
    calm = replace(run, name="calm")
    calm.start()
    calm.finish()
    jobs, request = RayJobs(run.head.dashboard), job_of(run)
    jobs.submit(request)
    phases = set()

    def reached() -> bool:
        phases.add(status(run).get("phase"))
        assert jobs.job_info(request.submission_id).status in ("PENDING", "RUNNING"), said_by(jobs, request)
        return run.reached(10)

    poll(reached, "step 10")
    jobs.stop(request.submission_id)
    poll(lambda: jobs.job_info(request.submission_id).status == "STOPPED", "end of the job")
    said = said_by(jobs, request)
    step = run.checkpoints()[-1].step
    assert 10 <= step < MAX_STEPS
    assert f"stopped at step {step}/{MAX_STEPS}: {run.checkpoints()[-1].name} is in " in said
    assert f"stopped at step {step}/{MAX_STEPS}" in status(run)["detail"]
    assert {Phase.PREPARING_DATA, Phase.WAITING_FOR_RESOURCES, Phase.TRAINING} <= phases
    run.start()
    run.finish()
    assert f"resuming from checkpoint-{step}-" in run.log.read_text()
    assert weights(run) == weights(calm)
    assert run.folder.read_bytes("evaluation/test.json") == calm.folder.read_bytes("evaluation/test.json")
    assert (status(run, 2)["phase"], status(run, 2)["step"]) == (Phase.ENDED, MAX_STEPS)
    assert sorted(rank for rank, _, _ in worker_logs(RunFolder(run.folder), 2)) == [0, 1]
