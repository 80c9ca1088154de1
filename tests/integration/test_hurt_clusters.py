"""A cluster that loses a node, and one whose memory runs out: what the service makes of it."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from jobs.clusters.ray_jobs import RayJobs
from jobs.lifecycle import RunState
from jobs.model import Cause
from jobs.scheduler.limits import QueuesConfig
from jobs.submission.ray_request import SubmitRequest
from tests.integration.controller_driver import ControllerDriver
from tests.integration.ray_cluster import ray_cluster
from tests.integration.short_jobs import Workspace

# Of the memory that is free on this machine, which the test of running out of it may take.
TAKES_GB = 2.5


@pytest.mark.slow
def test_a_model_too_large_for_the_memory_is_tried_once_more_and_given_up_with_advice(
    training_tree: Path, tmp_path: Path
) -> None:
    """The memory that Ray's monitor leaves to the node."""
    # What is prepared beforehand need not be prepared where memory is short.
    prepare = ["task.py", "--config", "recipe.yaml", "--verb", "prepare", "--no-ray"]
    subprocess.run([sys.executable, *prepare], cwd=training_tree, check=True, capture_output=True)
    memory = psutil.virtual_memory()
    limits = {
        "memory_usage_threshold": (memory.total - memory.available + TAKES_GB * 1e9) / memory.total,
        "memory_monitor_refresh_ms": 100,
    }
    sets = ["model.d_model=1536", "model.encoder_layers=4", "scaling.num_workers=1"]
    with ray_cluster(num_cpus=4, _system_config=limits) as (_, head):
        workspace = Workspace(tmp_path, head.dashboard, QueuesConfig())
        drive = ControllerDriver(workspace)
        workspace.submit(
            training_tree, "large", [*sets, "training.per_device_train_batch_size=1"], recipe="recipe.yaml"
        )
        run = drive.until_ended("large")
        attempts = workspace.ledger.attempts("large")
        workspace.close()
    assert [item.cause for item in attempts] == [Cause.OUT_OF_MEMORY] * 2, [item.message for item in attempts]
    assert run.state == RunState.FAILED
    # Ray's monitor takes the worker, whose driver then ends with 9, or the entrypoint's parent, and then there is none.
    assert {item.exit_code for item in attempts} <= {9, None}
    assert "memory ran out" in run.reason
    assert "lower training.per_device_train_batch_size" in run.reason


@pytest.fixture
def environments_when_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes unpack a job's code when they run a part of it, not when it begins.

    The nodes of one machine share the folder of unpacked packages, without a lock between them: a driver would start on
    what another node has half unpacked.
    """
    submit = RayJobs.submit

    def submit_without_eager_install(jobs: RayJobs, request: SubmitRequest) -> bool:
        config = {**request.runtime_env.get("config", {}), "eager_install": False}
        return submit(jobs, replace(request, runtime_env={**request.runtime_env, "config": config}))

    monkeypatch.setattr(RayJobs, "submit", submit_without_eager_install)


@pytest.mark.slow
@pytest.mark.usefixtures("environments_when_needed")
def test_a_lost_node_costs_no_retry_and_the_run_goes_on_when_there_is_another(
    training_tree: Path, tmp_path: Path
) -> None:
    """Its raylet is killed and says nothing more, as when a machine loses its power."""
    # The cluster notices within seconds, not half a minute.
    soon = {"health_check_period_ms": 1000, "health_check_timeout_ms": 1000, "health_check_failure_threshold": 3}
    with ray_cluster(num_cpus=4, _system_config=soon) as (cluster, head):
        second = cluster.add_node(num_cpus=2, resources={"second": 2})
        workspace = Workspace(tmp_path, head.dashboard, QueuesConfig())
        drive = ControllerDriver(workspace)
        # The attempt could start its workers again, but would wait for room as long as there is no other node.
        sets = ["scaling.resources_per_worker={CPU: 1, second: 1}", "training.max_steps=60", "job.max_retries=0"]
        sets.append("run.max_failures=3")
        workspace.submit(training_tree, "node", sets, recipe="recipe.yaml")
        drive.until_step("node", 13)
        cluster.remove_node(second, allow_graceful=False)
        drive.until(lambda: workspace.ledger.run("node").state == RunState.PREEMPTED, "word of the lost node")
        assert "a node was lost" in workspace.ledger.run("node").reason
        drive.until(lambda: "second" in workspace.service.run("node").reason, "word of what is missing")
        cluster.add_node(num_cpus=2, resources={"second": 2})
        run = drive.until_ended("node")
        attempts = workspace.ledger.attempts("node")
        workspace.close()
    assert run.state == RunState.SUCCEEDED, run.reason
    assert [(item.cause, item.exit_code) for item in attempts] == [(Cause.NODE_LOST, 11), (Cause.SUCCEEDED, 0)]
    assert attempts[1].resume_from is not None
