"""Runs and prepared sets, complete, of the last commit before models had families in folders of their own.

Each run was killed at step 5 of 6, with a checkpoint of step 4.
"""

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.metrics_lines import metrics_of
from tests.trainers.run_folder.earlier_versions.tiny_corpus import TINY_WHISPER, of_tiny_corpus
from trainers.config.schema import TrainConfig
from trainers.pipeline.engine import LocalEngine
from trainers.pipeline.evaluate import evaluate
from trainers.pipeline.fit import fit
from trainers.run_folder.journal import Journal
from trainers.run_folder.layout import CHECKPOINTS, RunFolder
from trainers.storage import open_storage

OF_THEN = Path(__file__).parent / "before_families"
CTC = {"init": "scratch", "family": "ctc", "d_model": 8, "encoder_layers": 1, "attention_heads": 2, "max_context_s": 3}
MODELS: dict[str, dict[str, Any]] = {"whisper": TINY_WHISPER, "ctc": {"model": CTC}}


@pytest.fixture(params=list(MODELS))
def settings(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrainConfig:
    """The config of an interrupted run, whose storage has the runs and prepared sets of then."""
    # The id of a run is always the same: what another process of this test has staged must not be taken over.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    shutil.copytree(OF_THEN, tmp_path / "runs")
    return of_tiny_corpus(tmp_path, request.param, MODELS[request.param] | {"checkpoint.num_to_keep": 1})


def folder_of(settings: TrainConfig) -> RunFolder:
    """The folder of the run."""
    return RunFolder(open_storage(f"{settings.run.storage_path}/{settings.run.name}"))


def prepared_sets(settings: TrainConfig) -> list[Path]:
    """All files of prepared sets."""
    return sorted(Path(str(settings.run.storage_path), "prepared").rglob("shard-*"))


@pytest.mark.integration
def test_a_run_continues_from_its_checkpoint_on_the_data_that_was_prepared(settings: TrainConfig) -> None:
    folder, sets = folder_of(settings), prepared_sets(settings)
    before = Journal(folder).read()
    assert before.finished is None
    fit(settings, LocalEngine())
    after = Journal(folder).read()
    assert prepared_sets(settings) == sets
    assert after.experiment is not None
    assert before.experiment is not None
    assert after.experiment["id"] == before.experiment["id"]
    assert after.finished is not None
    assert after.finished.attempt == 2
    assert [line["step"] for line in metrics_of(folder) if "eval_wer" in line] == [2, 4, 6]
    assert folder.storage.exists("model/model.safetensors")


@pytest.mark.integration
def test_a_checkpoint_scores_what_it_did(settings: TrainConfig) -> None:
    folder = folder_of(settings)
    (checkpoint,) = Journal(folder).read().checkpoints
    before = folder.read_json(f"{CHECKPOINTS}/{checkpoint.name}/validation.json")
    assert before is not None
    totals = evaluate(
        settings, LocalEngine(), model=f"{folder.url}/{CHECKPOINTS}/{checkpoint.name}", split="validation"
    ).totals
    loss = totals["loss"]
    assert loss == pytest.approx(before.pop("loss"), rel=1e-3)
    assert {name: totals[name] for name in before} == before
