"""What Ray Train knows of a run's checkpoints, next to what the run's journal says."""

import json
import math
from pathlib import Path

from ray.train import Result

from tests.integration.driver_process import Run
from trainers.run_folder.layout import ATTEMPTS, CHECKPOINTS, POINTER, RAY, RunFolder


def check_ray_result(run: Run, *, attempt: int, num_to_keep: int) -> None:
    """Ray's Result of the last attempt has the journal's checkpoints; its folder has a pointer to each, and no more."""
    state = run.journal.read()
    assert state.attempt == attempt
    ranked = sorted(state.checkpoints, key=lambda item: (-item.metrics["eval_wer"], item.step))
    ray_folder = run.folder.sub(f"{ATTEMPTS}/{state.attempt}/{RAY}/{RunFolder(run.folder).ray_run_name(state.attempt)}")
    path, filesystem = ray_folder.for_pyarrow()
    result = Result.from_path(path, storage_filesystem=filesystem)
    assert result.best_checkpoints is not None
    found = [(Path(checkpoint.path).name, metrics) for checkpoint, metrics in result.best_checkpoints]
    # Ray keeps, as the journal does, the newest next to the best; Result.from_path knows no number to keep.
    assert found == [(item.name, {**item.metrics, "step": item.step}) for item in ranked]
    assert num_to_keep <= len(found) <= num_to_keep + 1
    assert result.checkpoint is not None
    assert Path(result.checkpoint.path).name == state.checkpoints[-1].name
    pointers = {entry.key: entry for entry in ray_folder.list_files() if entry.key.endswith(POINTER)}
    assert set(pointers) == {f"{item.name}/{POINTER}" for item in state.checkpoints}
    for item in state.checkpoints:
        pointer = json.loads(ray_folder.read_bytes(f"{item.name}/{POINTER}"))
        assert pointer == {"uri": run.folder.url(f"{CHECKPOINTS}/{item.name}"), "step": item.step}
        assert run.folder.exists(f"{CHECKPOINTS}/{item.name}/model.safetensors")
        assert not any(math.isnan(value) for value in item.metrics.values())
