"""A training with random changes of its clips that dies is continued as if it had not, bit for bit, without Ray."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from tests.metrics_lines import metrics_of
from tests.trainers.synthetic import content, speechlike, write_recording
from trainers.main import main
from trainers.run_folder.journal import Journal
from trainers.run_folder.layout import RunFolder
from trainers.storage import open_storage
from trainers.training.trainer.speech_trainer import SpeechTrainer

MAX_STEPS, SAVE_STEPS, DIES_AT = 12, 4, 10
AUGMENT: dict[str, Any] = {
    "augment.speed_range": [0.8, 1.25],
    "augment.gain_db": [-6, 6],
    "augment.noise_probability": 0.7,
    "augment.rir_probability": 0.7,
    "augment.time_masks": 2,
    "augment.frequency_masks": 2,
}
CHANGES: dict[str, dict[str, Any]] = {
    "augment": AUGMENT,
    "augment, CTC": {
        "model": {"init": "scratch", "family": "ctc", "d_model": 16, "encoder_layers": 1, "attention_heads": 2},
        "decode": {},
        **AUGMENT,
    },
    # Drawn from the global generators of numpy and torch, one forward pass after the other.
    "the model's own": {
        "model.apply_spec_augment": True,
        "model.mask_time_prob": 0.3,
        "model.mask_feature_prob": 0.2,
        "model.dropout": 0.2,
    },
}


def losses_and_weights(url: str) -> tuple[dict[tuple[int, str], float], dict[int, str]]:
    """Every loss by step, and the hash of each checkpoint's weights."""
    folder = RunFolder(open_storage(url))
    numbers: dict[tuple[int, str], float] = {
        (line["step"], key): line[key] for line in metrics_of(folder) for key in ("loss", "eval_loss") if key in line
    }
    checkpoints = Journal(folder).read().checkpoints
    return numbers, {item.step: item.files["model.safetensors"]["sha256"] for item in checkpoints}


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(changes, id=name, marks=pytest.mark.long if name == "augment" else ())
        for name, changes in CHANGES.items()
    ],
)
def test_a_training_that_died_goes_on_bit_for_bit(
    tones: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    changes: dict[str, Any],
) -> None:
    write_recording(tmp_path / "hum.wav", speechlike(0.8, seed=9))
    (tmp_path / "hum.csv").write_text("path\nhum.wav\n")
    if "augment.noise_probability" in changes:
        mixed = dict.fromkeys(("augment.noise_manifest", "augment.rir_manifest"), str(tmp_path / "hum.csv"))
        changes = {**changes, **mixed}
    recipe = tmp_path / "recipe.yaml"
    common = {
        "data": {split: str(tones / f"{split}.csv") for split in ("train", "validation", "test")},
        "run.storage_path": str(tmp_path / "runs"),
        "training.max_steps": MAX_STEPS,
        "training.save_steps": SAVE_STEPS,
        "training.logging_steps": 1,
        "training.learning_rate": 1e-3,
        "training.per_device_train_batch_size": 3,
        "training.gradient_accumulation_steps": 2,
        "decode.max_length": 4,
        "training.report_to": [],
        "checkpoint.num_to_keep": None,
    }
    recipe.write_text(yaml.safe_dump(content({**common, **changes})))

    def run(name: str) -> int:
        return main(["--config", str(recipe), "--no-ray", "--set", f"run.name={name}"])

    original = SpeechTrainer.training_step
    states: list[tuple[int, bytes, int]] = []

    def watched(self: SpeechTrainer, *args: Any, **kwargs: Any) -> Any:
        state = np.random.get_state(legacy=False)["state"]
        states.append((self.state.global_step, state["key"].tobytes(), state["pos"]))
        return original(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(SpeechTrainer, "training_step", watched)
        assert run("calm") == 0
    assert [step for step, *_ in states] == [step for step in range(MAX_STEPS) for _ in range(2)], "two forward passes"
    if "model.apply_spec_augment" in changes:
        assert len(set(states)) == len(states), "each forward pass draws masks of its own"

    def dies(self: SpeechTrainer, *args: Any, **kwargs: Any) -> Any:
        if self.state.global_step == DIES_AT:
            raise RuntimeError("the process dies")
        return original(self, *args, **kwargs)

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="the process dies"):
        patch.setattr(SpeechTrainer, "training_step", dies)
        run("killed")
    capfd.readouterr()
    assert run("killed") == 0
    assert f"resuming from checkpoint-{DIES_AT // SAVE_STEPS * SAVE_STEPS}-" in capfd.readouterr().out
    calm, killed = (f"{tmp_path}/runs/{name}" for name in ("calm", "killed"))
    assert losses_and_weights(killed) == losses_and_weights(calm)
