"""What Ray Train knows of a run's checkpoints is what the run's journal says, after kills too."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from ray.train import Result

from tests.integration.driver_process import RayHead, Run
from tests.integration.training_trees import write_recipe
from tests.s3 import FaultProxy
from trainers.run_folder.layout import ATTEMPTS, CHECKPOINTS, POINTER, RAY, RunFolder

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


def test_on_a_folder_after_a_killed_worker_and_a_killed_driver(ray_head: RayHead, recipe: Path, tmp_path: Path) -> None:
    run = Run(ray_head, "pointed", str(tmp_path / "runs"), recipe, SETS, tmp_path / "pointed.log")
    run.start()
    run.wait_for(lambda: run.reached(SAVE_STEPS + 1), "a step after the first checkpoint")
    run.kill_worker()
    run.wait_for(lambda: run.reached(3 * SAVE_STEPS + 1), "a step after the third checkpoint")
    run.kill_driver()
    run.start()
    run.finish()
    check_result(run)


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
    check_result(run)


def check_result(run: Run) -> None:
    """Ray's Result of the last attempt has the journal's checkpoints; its folder has a pointer to each, and no more."""
    state = run.journal.read()
    assert state.attempt == 2
    ranked = sorted(state.checkpoints, key=lambda item: (-item.metrics["eval_wer"], item.step))
    ray_folder = run.folder.sub(f"{ATTEMPTS}/{state.attempt}/{RAY}/{RunFolder(run.folder).ray_run_name(state.attempt)}")
    path, filesystem = ray_folder.for_pyarrow()
    result = Result.from_path(path, storage_filesystem=filesystem)
    assert result.best_checkpoints is not None
    found = [(Path(checkpoint.path).name, metrics) for checkpoint, metrics in result.best_checkpoints]
    # Ray keeps, as the journal does, the newest next to the best; Result.from_path knows no number to keep.
    assert found == [(item.name, {**item.metrics, "step": item.step}) for item in ranked]
    assert NUM_TO_KEEP <= len(found) <= NUM_TO_KEEP + 1
    assert result.checkpoint is not None
    assert Path(result.checkpoint.path).name == state.checkpoints[-1].name
    pointers = {entry.key: entry for entry in ray_folder.list_files() if entry.key.endswith(POINTER)}
    assert set(pointers) == {f"{item.name}/{POINTER}" for item in state.checkpoints}
    for item in state.checkpoints:
        pointer = json.loads(ray_folder.read_bytes(f"{item.name}/{POINTER}"))
        assert pointer == {"uri": run.folder.url(f"{CHECKPOINTS}/{item.name}"), "step": item.step}
        assert run.folder.exists(f"{CHECKPOINTS}/{item.name}/model.safetensors")
        assert not any(math.isnan(value) for value in item.metrics.values())
