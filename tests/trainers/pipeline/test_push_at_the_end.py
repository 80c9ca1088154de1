"""A run that is to be pushed: what is asked before it trains, and what becomes of it where the Hub is not there."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.hub import READING, Fault, Hub
from tests.trainers.inspection.checking import sound_corpus
from tests.trainers.run_folder.finished_runs import MODEL, finish
from tests.trainers.synthetic import config
from trainers.config.schema import TrainConfig
from trainers.errors import ConfigError, DataError
from trainers.pipeline import fit as fit_module
from trainers.pipeline.attempt import begin
from trainers.pipeline.engine import LocalEngine
from trainers.pipeline.fit import fit
from trainers.run_folder.attempt_request import AttemptRequest
from trainers.run_folder.attempt_status import Phase, StatusWriter, read_status
from trainers.run_folder.journal import Journal
from trainers.run_folder.layout import RunFolder


def wanted(folder: Path, **changes: Any) -> TrainConfig:
    return config({"run.name": "sr", "run.storage_path": str(folder), "hub.push": True, **changes})


@pytest.fixture
def finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrainConfig:
    """A run that has its result, in which nothing is left to train."""
    recipe = wanted(tmp_path)
    finish(RunFolder.of(recipe))
    monkeypatch.setattr(fit_module, "begin", lambda *_: None)
    return recipe


class Preparing(Exception):
    """The attempt has begun, and prepares data."""


class Prepares(LocalEngine):
    """Prepares nothing."""

    def run_shard_tasks(self, *_: object) -> Iterator[Any]:
        """Ends the attempt."""
        raise Preparing


def begin_attempt(recipe: TrainConfig) -> None:
    """Begins an attempt; where its recipe names no corpus, data is not there."""
    folder = RunFolder.of(recipe)
    begin(recipe, Prepares(), AttemptRequest(folder), StatusWriter(folder, None))


class TestBeforeTraining:
    def test_a_wrong_token_is_found(self, taking_hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HF_TOKEN", READING)
        with pytest.raises(ConfigError, match="the token of ana only reads"):
            begin_attempt(wanted(tmp_path))

    def test_the_repository_is_made(self, taking_hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(Preparing):
            begin_attempt(wanted(tmp_path, **{**sound_corpus(tmp_path), "run.name": "sr", "hub.private": True}))
        assert taking_hub.repositories["ana/sr"].private
        assert f"hub: the best model is pushed to {taking_hub.url}/ana/sr at the end" in capsys.readouterr().out

    def test_none_is_made_where_the_attempt_cannot_begin(
        self, taking_hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with pytest.raises(DataError, match="data\\.train"):
            begin_attempt(wanted(tmp_path))
        assert taking_hub.requests, "it is asked whether the token may push"
        assert taking_hub.repositories == {}
        monkeypatch.setenv("HF_TOKEN", READING)
        with pytest.raises(ConfigError, match=r"(?s)data\.train.*the token of ana only reads"):
            begin_attempt(wanted(tmp_path))

    def test_a_hub_that_is_down_stops_nothing(
        self, taking_hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        taking_hub.faults.append(Fault("", 503, times=1000))
        with pytest.raises(Preparing):
            begin_attempt(wanted(tmp_path, **{**sound_corpus(tmp_path), "run.name": "sr"}))
        assert "try again later; training goes on, and the model is pushed at its end" in capsys.readouterr().out

    def test_where_nothing_is_pushed_nobody_is_asked(self, taking_hub: Hub, tmp_path: Path) -> None:
        with pytest.raises(DataError):
            begin_attempt(wanted(tmp_path, **{"hub.push": False}))
        assert taking_hub.requests == []


class TestAtTheEnd:
    def test_a_finished_run_whose_push_is_not_recorded_is_pushed_once(
        self, taking_hub: Hub, finished: TrainConfig, capsys: pytest.CaptureFixture[str]
    ) -> None:
        fit(finished, LocalEngine(), attempt=1)
        repository = taking_hub.repositories["ana/sr"]
        assert repository.files.keys() == MODEL.keys()
        line = f"pushed to {taking_hub.url}/ana/sr, commit {repository.commits[-1]}"
        assert line in capsys.readouterr().out.splitlines()
        asked = len(taking_hub.requests)
        fit(finished, LocalEngine(), attempt=1)
        assert len(taking_hub.requests) == asked, "a recorded push is not repeated"
        again = wanted(Path(str(finished.run.storage_path)), **{"hub.model_id": "lab/sr"})
        fit(again, LocalEngine(), attempt=1)
        assert taking_hub.repositories["lab/sr"].files.keys() == MODEL.keys()

    def test_a_hub_that_is_down_leaves_the_result_and_says_what_pushes_it_later(
        self, taking_hub: Hub, finished: TrainConfig, capsys: pytest.CaptureFixture[str]
    ) -> None:
        folder = RunFolder.of(finished)
        with StatusWriter(folder, 1) as worker:
            worker.update(Phase.TRAINING, step=10, max_steps=10)
        taking_hub.faults.append(Fault("commit/main", 503, times=1000))
        result = fit(finished, LocalEngine(), attempt=1)
        assert result.folder == folder.url
        again = f"rayscribe push {folder.url}"
        said = "the Hub responds with status 503 (tried 2 times); try again later); the run is complete: push it with"
        assert f"{said} {again}" in capsys.readouterr().out
        status = read_status(folder, 1) or {}
        assert (status["phase"], status["step"]) == (Phase.ENDED, 10)
        assert status["detail"].endswith(f" · not pushed to the Hub: {again}")
        assert Journal(folder).read().pushes == ()
