"""A mix of sets from recipe to score: its journal and report, and a training that died in mid-epoch, bit for bit."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.test_augmented_resume import losses_and_weights
from tests.trainers.synthetic import content, write_corpus
from trainers.main import main
from trainers.run_folder.layout import RunFolder
from trainers.storage import open_storage
from trainers.training.trainer.speech_trainer import SpeechTrainer

# 22 clips, one of which is too long: an epoch of 21 draws, six steps of four, one of which is smaller.
SIZES = {"large": 15, "small": 7}
MAX_STEPS, SAVE_STEPS, DIES_AT = 14, 4, 10


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mix")
    members = []
    for name, size in SIZES.items():
        texts = [f"{name} {'ab'[number % 2]}" for number in range(size)]
        durations_s = [0.3 + 0.05 * number for number in range(size)]
        if name == "large":
            durations_s[3] = 4.0
        train = write_corpus(folder / name, texts, durations_s=durations_s)
        validation = write_corpus(folder / name, texts[:3], durations_s=[0.4] * 3, name="validation")
        members.append({"name": name, "weight": 1, "train": str(train), "validation": str(validation)})
    changes: dict[str, Any] = {
        "data": {"mix": members, "test": members[0]["validation"]},
        "run.storage_path": str(folder / "runs"),
        "training.max_steps": MAX_STEPS,
        "training.save_steps": SAVE_STEPS,
        "training.logging_steps": 1,
        "training.per_device_train_batch_size": 2,
        "training.gradient_accumulation_steps": 2,
        "decode.max_length": 4,
        "training.report_to": [],
        "checkpoint.num_to_keep": None,
        "augment.speed_range": [0.8, 1.25],
        "model.dropout": 0.2,
    }
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(content(changes)))
    return path


def run(recipe: Path, name: str, *more: str) -> int:
    return main(["--config", str(recipe), "--no-ray", "--set", f"run.name={name}", *more])


def folder_of(recipe: Path, name: str) -> RunFolder:
    return RunFolder(open_storage(f"{recipe.parent}/runs/{name}"))


@pytest.fixture(scope="module")
def calm(recipe: Path) -> RunFolder:
    assert run(recipe, "calm") == 0
    return folder_of(recipe, "calm")


def test_shares_and_draws_are_in_the_journal(calm: RunFolder) -> None:
    entries = [calm.read_json(f"journal/{number:08d}.json") or {} for number in range(1, 4)]
    (mix,) = [entry["mix"] for entry in entries if entry["kind"] == "prepared"]
    assert mix["draws_per_epoch"] == 21
    found = {member["name"]: [member[key] for key in ("clips", "weight", "share")] for member in mix["members"]}
    assert found == {"large": [14, 1.0, 0.5], "small": [7, 1.0, 0.5]}
    assert [member["draws_per_epoch"] for member in mix["members"]] == [11, 10]
    assert mix["members"][1]["hours"] == round(sum(0.3 + 0.05 * number for number in range(7)) / 3600, 4)


def test_members_without_a_validation_of_all_are_scored_together_and_each(calm: RunFolder) -> None:
    scores = calm.read_json("evaluation/validation.json")
    assert scores is not None
    assert scores["utterances"] == 6
    assert {name: each["utterances"] for name, each in scores["members"].items()} == {"large": 3, "small": 3}
    test = calm.read_json("evaluation/test.json")
    assert test is not None and (test["utterances"], "members" in test) == (3, False)


DYNAMIC = ("training.max_batch_duration_s=1.5", "training.per_device_train_batch_size=16")


@pytest.mark.parametrize(
    "changes", [pytest.param((), id="fixed", marks=pytest.mark.long), pytest.param(DYNAMIC, id="dynamic")]
)
def test_a_training_that_died_in_mid_epoch_goes_on_bit_for_bit(
    recipe: Path,
    calm: RunFolder,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    changes: tuple[str, ...],
) -> None:
    given = [argument for change in changes for argument in ("--set", change)]
    name = f"killed{len(changes)}"
    undisturbed = calm
    if changes:
        assert run(recipe, "calm_dynamic", *given) == 0
        undisturbed = folder_of(recipe, "calm_dynamic")
        capfd.readouterr()
    original = SpeechTrainer.training_step

    def dies(self: SpeechTrainer, *args: Any, **kwargs: Any) -> Any:
        if self.state.global_step == DIES_AT:
            raise RuntimeError("the process dies")
        return original(self, *args, **kwargs)

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="the process dies"):
        patch.setattr(SpeechTrainer, "training_step", dies)
        run(recipe, name, *given)
    said = capfd.readouterr().out
    assert "mix: 21 draws an epoch" in said
    assert "mix: small, weight 1: 7 clips (0.00 h) · 50.0%, 10 draws, each clip 1.43 times" in said
    assert run(recipe, name, *given) == 0
    said = capfd.readouterr().out
    assert "resuming from checkpoint-8-" in said
    assert f" {9 if changes else 6} steps per epoch" in said
    assert losses_and_weights(folder_of(recipe, name).url) == losses_and_weights(undisturbed.url)


def test_other_weights_are_another_experiment(
    recipe: Path, calm: RunFolder, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    changed = yaml.safe_load(recipe.read_text())
    changed["data"]["mix"][0]["weight"] = 3
    other = tmp_path / "other.yaml"
    other.write_text(yaml.safe_dump(changed))
    assert main(["--config", str(other), "--no-ray", "--set", "run.name=calm"]) == 5
    assert "data.mix: [['large', 1.0], ['small', 1.0]] → [['large', 3.0], ['small', 1.0]]" in capfd.readouterr().err
    assert calm.read_json("result.json") is not None


def test_a_member_of_which_nothing_is_left_is_named(recipe: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(recipe, "none_left", "--set", "data.min_duration_s=0.7", "--set", "data.too_long_eval=skip") == 3
    error = capfd.readouterr().err
    assert (
        "data.mix: none of the 7 clips of small is left to train on: 7 shorter than data.min_duration_s 0.7 s" in error
    )
