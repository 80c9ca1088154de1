"""What may be continued under one name, and what may not."""

from pathlib import Path
from typing import Any

import pytest

from tests.trainers.synthetic import config
from tests.trainers.test_checkpoints import staged
from trainers.checkpoints import bring_home
from trainers.errors import ResumeError
from trainers.experiment import claim, describe, finished
from trainers.run_folder import CHECKPOINTS, PROCESSOR, RESULT, RunFolder
from trainers.storage import open_storage

DATA = {"train": "a", "validation": "b", "test": "c"}


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """An empty run folder."""
    return RunFolder(open_storage(str(tmp_path / "run")))


def give_checkpoint(folder: RunFolder, tmp_path: Path, step: int = 8) -> None:
    """A checkpoint of the run."""
    bring_home(staged(tmp_path / "made", step), folder.storage.sub(CHECKPOINTS))


def test_the_same_experiment_keeps_its_id(folder: RunFolder, tmp_path: Path) -> None:
    first = claim(folder, config(), DATA)
    assert claim(folder, config(), DATA) == first, "before the first checkpoint, for what waits in staging"
    give_checkpoint(folder, tmp_path)
    assert claim(folder, config({"training.max_steps": 20, "training.logging_steps": 7}), DATA) == first


def test_before_the_first_checkpoint_another_experiment_begins_clean(folder: RunFolder) -> None:
    first = claim(folder, config(), DATA)
    folder.storage.write_bytes(f"{PROCESSOR}/config.json", b"{}")
    assert claim(folder, config({"model.d_model": 32}), DATA) != first
    assert not folder.storage.exists(f"{PROCESSOR}/config.json"), "the old sizes must not be taken for the new"


@pytest.mark.parametrize(
    ("changes", "data", "shown"),
    [
        ({"run.seed": 1}, DATA, "run.seed: 42 → 1"),
        ({"scaling.num_workers": 3}, DATA, "training.utterances_per_step: 16 → 48"),
        ({"training.training_args": {"adam_beta2": 0.9}}, DATA, "training.training_args.adam_beta2: None → 0.9"),
        ({"data.do_normalize_eval": False}, DATA, "data.do_normalize_eval: True → False"),
        ({}, {**DATA, "train": "z"}, "data.train: 'a' → 'z'"),
        ({}, {**DATA, "validation": "z"}, "data.validation: 'b' → 'z'"),
    ],
)
def test_what_changes_the_mathematics_or_the_ranking_is_refused(
    folder: RunFolder, tmp_path: Path, changes: dict[str, Any], data: dict[str, str], shown: str
) -> None:
    claim(folder, config(), DATA)
    give_checkpoint(folder, tmp_path)
    with pytest.raises(ResumeError) as caught:
        claim(folder, config(changes), data)
    assert shown in str(caught.value)


def test_workers_may_change_where_the_global_batch_is_given() -> None:
    two, three = (
        describe(config({"training.global_batch_size": 32, "scaling.num_workers": workers}), DATA) for workers in (2, 3)
    )
    assert two == three


def test_loading_and_logging_arguments_are_no_part_of_it() -> None:
    assert describe(config({"training.training_args": {"dataloader_num_workers": 4}}), DATA) == describe(config(), DATA)


def test_fewer_steps_than_were_trained_are_refused(folder: RunFolder, tmp_path: Path) -> None:
    claim(folder, config(), DATA)
    give_checkpoint(folder, tmp_path, step=8)
    with pytest.raises(ResumeError, match="the run is at step 8"):
        claim(folder, config({"training.max_steps": 5}), DATA)


def test_a_finished_run_is_not_finished_for_another_test_set(folder: RunFolder) -> None:
    folder.write_json(RESULT, {"max_steps": 10, "num_train_epochs": None, "test_data": "c"})
    assert finished(folder, config(), DATA)
    assert not finished(folder, config({"training.max_steps": 11}), DATA)
    with pytest.raises(ResumeError, match="rayscribe evaluate"):
        finished(folder, config(), {**DATA, "test": "other"})
