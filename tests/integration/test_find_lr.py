"""`--find-lr` prints losses by learning rate and a suggestion, and keeps no run."""

from pathlib import Path

import pytest
import yaml

from tests.trainers.synthetic import content
from trainers.main import main
from trainers.training.trainer.rate_sweep import STEPS


def test_it_suggests_a_rate_and_keeps_no_run(tones: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = tmp_path / "recipe.yaml"
    changes = {
        "run.storage_path": str(tmp_path / "runs"),
        "data": {split: str(tones / f"{split}.csv") for split in ("train", "validation")},
        "training.max_steps": 4000,
        # Both would need initial weights.
        "checkpoint.interpolate": [0.5],
        "training.keep_timestamps": 0.2,
        "training.global_batch_size": 8,
        "scaling.num_workers": 2,
    }
    recipe.write_text(yaml.safe_dump(content(changes)))
    assert main(["--config", str(recipe), "--find-lr"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith("find-lr: the loss is lowest at a learning rate of ")
    rate = float(lines[-1].rpartition("=")[2])
    assert 1e-6 < rate < 1e-1
    assert 5 < sum(line.startswith("lr ") for line in lines) <= STEPS
    assert "validation WER" not in "\n".join(lines)
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["prepared"]
