"""Refused checkpoints are never the best; a run in which all are refused fails, and keeps the last one."""

import json
from pathlib import Path

import pytest
import yaml

from jobs.cli.app import main
from tests.integration.test_base_scores import pretrained, tuning
from tests.integration.test_second_starts import first, run_folder
from tests.trainers.synthetic import content
from trainers.data import sounds
from trainers.errors import RefusedError
from trainers.pipeline.engine import LocalEngine
from trainers.pipeline.fit import fit
from trainers.run_folder.journal import Journal
from trainers.run_folder.layout import RunFolder

__all__ = ["pretrained"]


@pytest.fixture(autouse=True)
def short_sounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """One sound of a second in each set."""
    for name in sounds.SOUNDS:
        monkeypatch.setitem(sounds.SOUNDS, name, lambda: [sounds.silence()[0]])


def test_a_run_whose_checkpoints_are_all_refused_fails_and_keeps_the_last(
    tones: Path, tmp_path: Path, pretrained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    conditions = {"checkpoint.refuse_if": {"validation.wer": "> base - 1000"}}
    wanted = tuning(tones, tmp_path, pretrained, "refused", **conditions)
    with pytest.raises(RefusedError, match=r"refuses every checkpoint; checkpoint-8.*validation.wer is \d+.\d\d, more"):
        fit(wanted, LocalEngine())
    assert "the checkpoint of step 4 is refused: validation.wer is" in capsys.readouterr().out
    state = Journal(RunFolder.of(wanted)).read()
    assert state.finished is None
    assert state.checkpoints[-1].step == 8
    assert not (run_folder(wanted) / "model").exists()
    # The same command gives the same answer.
    with pytest.raises(RefusedError):
        fit(wanted, LocalEngine())


def test_guards_are_scored_before_and_after_and_with_each_checkpoint(
    tones: Path, tmp_path: Path, pretrained: Path
) -> None:
    conditions = {"silence.words_per_minute": "> base + 100000", "validation.wer": "> 1000"}
    changes = {"evaluate.guard": "default", "checkpoint.refuse_if": conditions}
    wanted = tuning(tones, tmp_path, pretrained, "guarded", **changes)
    result = fit(wanted, LocalEngine())
    assert {"silence", "noise"} < {*result.base}
    assert result.guards.keys() == {"silence", "noise"}
    assert " · silence: " in result.headline and "words/min" in result.headline
    assert json.loads((run_folder(wanted) / "result.json").read_text())["guards"] == result.guards
    of_checkpoints = [each.metrics for each in Journal(RunFolder.of(wanted)).read().checkpoints]
    assert all("eval_silence_words_per_minute" in metrics for metrics in of_checkpoints)
    assert not any("eval_refused" in metrics for metrics in of_checkpoints)


def test_a_model_that_is_not_better_fails_the_command_if_that_is_required(
    tones: Path, tmp_path: Path, pretrained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = {"name_or_path": str(pretrained), "language": "English"}
    recipe = tmp_path / "recipe.yaml"
    changes = first(tones, tmp_path) | {"model": model, "training.learning_rate": 1e-9}
    recipe.write_text(yaml.safe_dump(content(changes)))
    command = ["train", str(recipe), "--no-ray"]
    assert main([*command, "--require-better"]) == RefusedError.exit_code
    assert "the model is not better than the initial weights (not told apart: WER +0.00" in capsys.readouterr().err
    # The model is kept.
    assert main([*command, "--json"]) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (finished,) = (each for each in events if each["event"] == "finished")
    assert finished["verdicts"]["test"]["judgment"] == "not told apart"
