"""A run ends early once its validation score has not improved, also when it is killed on the way."""

import json
from pathlib import Path

import pytest

from tests.integration.test_second_starts import first, run_folder, stop_after
from tests.trainers.synthetic import config
from trainers.pipeline.engine import LocalEngine
from trainers.pipeline.fit import fit
from trainers.run_folder.journal import Journal
from trainers.run_folder.layout import RunFolder


def test_a_run_ends_after_as_many_validations_without_a_better_score(
    tones: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Steps so small that no hypothesis changes.
    changes = {"training.learning_rate": 1e-9, "training.max_steps": 40, "training.patience": 2}
    every = {"training.save_steps": 4, "training.eval_steps": 2}
    calm, killed = (config(first(tones, tmp_path / name) | changes | every) for name in ("calm", "killed"))
    result = fit(calm, LocalEngine())
    assert "train: ends early at step 6: eval_wer has not improved in 2 validations" in capsys.readouterr().out
    stop_after(killed, 4, monkeypatch)
    assert fit(killed, LocalEngine()).totals == result.totals
    for wanted in (calm, killed):
        state = Journal(RunFolder.of(wanted)).read()
        assert [each.step for each in state.checkpoints] == [4, 6]
        lines = [json.loads(line) for line in (run_folder(wanted) / "metrics.jsonl").read_text().splitlines()]
        assert [line["step"] for line in lines if "eval_wer" in line] == [2, 4, 6]


def test_a_run_that_is_killed_after_its_early_end_is_only_scored(
    tones: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {"training.learning_rate": 1e-9, "training.max_steps": 40, "training.patience": 1}
    wanted = config(first(tones, tmp_path) | changes | {"training.save_steps": 4, "training.eval_steps": 4})
    stop_after(wanted, 8, monkeypatch)
    fit(wanted, LocalEngine())
    assert [each.step for each in Journal(RunFolder.of(wanted)).read().checkpoints] == [4, 8]
