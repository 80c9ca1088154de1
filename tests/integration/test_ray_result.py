"""What Ray Train knows of a run's checkpoints is what the run's journal says, after kills too."""

from pathlib import Path
from typing import Any

import pytest

from tests.integration.driver_process import RayHead, Run
from tests.integration.ray_results import check_ray_result
from tests.integration.training_trees import write_recipe
from tests.s3 import FaultProxy

MAX_STEPS, SAVE_STEPS, NUM_TO_KEEP = 24, 4, 2
SETS = ("scaling.num_workers=2", "run.max_failures=20", f"checkpoint.num_to_keep={NUM_TO_KEEP}")


@pytest.fixture
def recipe(tones: Path, tmp_path: Path) -> Path:
    """A small model with dropout, whose scores move from checkpoint to checkpoint."""
    changes: dict[str, Any] = {
        "data.test": None,
        "training.max_steps": MAX_STEPS,
        "training.save_steps": SAVE_STEPS,
        "training.logging_steps": 1,
        "training.learning_rate": 1e-2,
        "training.per_device_train_batch_size": 4,
        "training.report_to": [],
    }
    return write_recipe(tmp_path / "recipe.yaml", tones, changes)


@pytest.mark.long
def test_on_a_folder_after_a_killed_worker_and_a_killed_driver(ray_head: RayHead, recipe: Path, tmp_path: Path) -> None:
    run = Run(ray_head, "pointed", str(tmp_path / "runs"), recipe, SETS, tmp_path / "pointed.log")
    run.start()
    run.wait_for(lambda: run.reached(SAVE_STEPS + 1), "a step after the first checkpoint")
    run.kill_worker()
    run.wait_for(lambda: run.reached(3 * SAVE_STEPS + 1), "a step after the third checkpoint")
    run.kill_driver()
    run.start()
    run.finish()
    check_ray_result(run, attempt=2, num_to_keep=NUM_TO_KEEP)


@pytest.mark.long
def test_on_s3_after_a_killed_driver(
    ray_head: RayHead,
    recipe: Path,
    tmp_path: Path,
    s3_bucket: str,
    fault_proxy: FaultProxy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", fault_proxy.url)
    sets = (*SETS, f"run.s3_endpoint_url={fault_proxy.url}")
    run = Run(ray_head, "pointed-s3", f"{s3_bucket}/runs", recipe, sets, tmp_path / "pointed.log", poll_s=0.2)
    run.start()
    run.wait_for(lambda: run.reached(2 * SAVE_STEPS + 1), "a step after the second checkpoint")
    run.kill_driver()
    run.start()
    run.finish()
    check_ray_result(run, attempt=2, num_to_keep=NUM_TO_KEEP)
