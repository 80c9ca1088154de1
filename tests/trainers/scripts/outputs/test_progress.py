"""Progress is read from what programs write, error rates in percent."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.trainers.scripts.outputs.programs import (
    begin_trainer_checkpoint,
    trainer_state,
    write_brain_checkpoint,
    write_trainer_checkpoint,
)
from trainers.scripts.outputs.progress import ScriptProgress, read_progress, scores_at

LOG = """\
epoch: 1, lr: 1.00e+00 - train loss: 4.21 - valid loss: 3.10, valid CER: 81.20, valid WER: 1.03e+02
epoch: 2, lr: 8.00e-01 - train loss: 1.50e-01 - valid loss: 2.00, valid CER: 11.20, valid WER: 23.10
"""


def write_state(path: Path, state: dict[str, Any]) -> None:
    path.mkdir(parents=True, exist_ok=True)
    (path / "trainer_state.json").write_text(json.dumps(state, indent=2))


def test_of_nothing_there_is_no_progress(tmp_path: Path) -> None:
    assert read_progress(tmp_path) == read_progress(tmp_path / "absent") == ScriptProgress()


def test_the_trainers_newest_state_says_it(tmp_path: Path) -> None:
    write_trainer_checkpoint(tmp_path, 10, wer=0.9)
    newest = write_trainer_checkpoint(tmp_path, 20, wer=0.25)
    os.utime(newest / "trainer_state.json", (2e9, 2e9))
    metrics = {"eval_loss": 1.5, "eval_wer": 25.0}
    assert read_progress(tmp_path) == ScriptProgress(20, 40, 2.0, 0.25, 25.0, metrics)


def test_a_state_that_is_being_written_says_nothing(tmp_path: Path) -> None:
    state = write_trainer_checkpoint(tmp_path, 10) / "trainer_state.json"
    state.write_text(state.read_text()[:-30])
    assert read_progress(tmp_path) == ScriptProgress()


@pytest.mark.parametrize(
    ("logged", "percent"),
    [
        ([0.9, 0.3], 30.0),
        ([1.2, 0.99], 99.0),
        # Early, a recognizer may insert many words.
        ([12.0, 0.8], 80.0),
        ([95.0, 40.0, 0.5], 0.5),
        ([8.0, 7.5], 7.5),
    ],
)
def test_fractions_are_told_from_percent(tmp_path: Path, logged: list[float], percent: float) -> None:
    history = [{"step": step, "eval_wer": wer, "eval_loss": 0.5} for step, wer in enumerate(logged)]
    write_state(tmp_path, trainer_state(5) | {"log_history": history})
    progress = read_progress(tmp_path)
    assert progress.wer == pytest.approx(percent)
    assert progress.metrics["eval_loss"] == 0.5


def test_results_of_the_end_are_added(tmp_path: Path) -> None:
    write_state(tmp_path, trainer_state(40))
    (tmp_path / "all_results.json").write_text(json.dumps({"eval_wer": 0.5, "eval_runtime": 3.0, "train_loss": 1.0}))
    (tmp_path / "predict_results.json").write_text(json.dumps({"predict_wer": 0.25, "predict_samples": 9}))
    progress = read_progress(tmp_path)
    assert (progress.step, progress.wer) == (40, 50.0)
    assert progress.metrics == {"eval_wer": 50.0, "predict_wer": 25.0}


def test_numbers_that_are_none_are_left_out(tmp_path: Path) -> None:
    history = [{"step": 1, "loss": float("nan")}, {"step": 1, "eval_loss": float("inf"), "eval_wer": "x"}]
    write_state(tmp_path, trainer_state(1) | {"log_history": [*history, 3, None], "max_steps": 0})
    assert read_progress(tmp_path) == ScriptProgress(1, None, 0.1, None, None, {})


@pytest.mark.parametrize("content", ["[]", "3", '{"global_step": "x", "log_history": 7}', "\xff", "[" * 100_000])
def test_files_of_another_kind_say_nothing(tmp_path: Path, content: str) -> None:
    (tmp_path / "trainer_state.json").write_text(content)
    (tmp_path / "train_log.txt").write_text(content)
    assert read_progress(tmp_path) == ScriptProgress()


def test_speechbrains_log_says_it_and_its_brain_the_step(tmp_path: Path) -> None:
    (tmp_path / "train_log.txt").write_text(LOG)
    metrics = {"eval_loss": 2.0, "eval_cer": 11.2, "eval_wer": 23.1}
    assert read_progress(tmp_path) == ScriptProgress(2, None, 2.0, 0.15, 23.1, metrics)
    write_brain_checkpoint(tmp_path, 120)
    assert read_progress(tmp_path).step == 120


def test_speechbrains_test_is_added(tmp_path: Path) -> None:
    (tmp_path / "train_log.txt").write_text(LOG + "Epoch loaded: 2 - test loss: 2.50, test WER: 30.00\nepoch: 3, tr")
    (tmp_path / "wer_test-clean.txt").write_text("%WER 12.34 [ 12 / 100, 4 ins, 5 del, 3 sub ]\n%SER 1 [ 1 / 2 ]\n")
    progress = read_progress(tmp_path)
    assert (progress.step, progress.wer) == (2, 23.1)
    assert progress.metrics.items() >= {"test_wer": 30.0, "test_loss": 2.5, "test-clean_wer": 12.34}.items()


def test_a_test_alone_is_the_score(tmp_path: Path) -> None:
    (tmp_path / "wer_test.txt").write_text("%WER 0.50 [ 1 / 200, 0 ins, 0 del, 1 sub ]\n")
    assert read_progress(tmp_path).wer == 0.5


def test_a_checkpoint_has_the_scores_of_its_own_step(tmp_path: Path) -> None:
    scored, not_scored = write_trainer_checkpoint(tmp_path, 10, wer=0.4), write_trainer_checkpoint(tmp_path, 20)
    assert scores_at(scored) == {"eval_wer": 40.0, "eval_loss": 1.5, "loss": 0.5}
    assert scores_at(not_scored) == {"loss": 0.25}
    write_state(not_scored, trainer_state(10, wer=0.4) | {"global_step": 20})
    assert scores_at(not_scored) == {"loss": 0.5}


def test_a_checkpoint_of_speechbrain_has_its_scores_next_to_it(tmp_path: Path) -> None:
    assert scores_at(write_brain_checkpoint(tmp_path, 5, wer=12.5)) == {"eval_wer": 12.5}
    assert scores_at(write_brain_checkpoint(tmp_path, 6)) == scores_at(begin_trainer_checkpoint(tmp_path, 5)) == {}
