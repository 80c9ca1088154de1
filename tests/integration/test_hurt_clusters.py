"""A cluster whose memory runs out: what the service makes of it. Lost nodes: tests/hosts/test_failures_on_hosts.py."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from jobs.model import Cause, RunState
from jobs.scheduler.limits import QueuesConfig
from tests.integration.controller_driver import ControllerDriver
from tests.integration.ray_cluster import ray_cluster
from tests.integration.short_jobs import Workspace

# Of the memory that is free on this machine, which the test of running out of it may take.
TAKES_GB = 2.5


@pytest.mark.long
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
