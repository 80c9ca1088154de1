"""What may be continued under one name, and what may not."""

from pathlib import Path
from typing import Any

import pytest

from tests.trainers.run_folder.writers import group_of, staged
from tests.trainers.synthetic import config
from trainers.config.schema import TrainConfig
from trainers.errors import ResumeError
from trainers.pipeline.continuation import decide, finished
from trainers.pipeline.experiment import describe, resolve_fields
from trainers.run_folder.attempt_request import refuse_another_trainer, refuse_without_journal
from trainers.run_folder.checkpoints import RetentionPolicy, upload_staged
from trainers.run_folder.fencing import Driver
from trainers.run_folder.journal import Finished, Journal, State
from trainers.run_folder.layout import CHECKPOINTS, RESULT, RunFolder
from trainers.storage import open_storage, sha256_of

DATA = {"train": "a", "validation": "b", "test": "c"}


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """An empty run folder."""
    return RunFolder(open_storage(str(tmp_path / "run")))


def begin(folder: RunFolder, wanted: TrainConfig, data: dict[str, str] = DATA, number: int | None = None) -> Driver:
    """A driver that begins an attempt of this experiment."""
    retried = number is not None and number > 1
    driver = Driver.open(
        folder,
        Journal(folder),
        number,
        lambda state: decide(folder.url, state, None, wanted, data, retried=retried).experiment,
    )
    assert driver is not None
    return driver


def described(wanted: TrainConfig) -> dict[str, Any]:
    """The experiment of a new run."""
    return describe(resolve_fields(wanted, "/prepared", None), DATA)


def id_of(driver: Driver) -> str:
    """The run's id, as the driver resolved it."""
    experiment = driver.check().experiment
    assert experiment is not None
    return str(experiment["id"])


def give_checkpoint(driver: Driver, tmp_path: Path, step: int = 8) -> None:
    """A checkpoint of the run."""
    upload_staged(staged(tmp_path / "made", step), group_of(driver, "x"), RetentionPolicy(None, "eval_wer"))


def test_the_same_experiment_keeps_its_id(folder: RunFolder, tmp_path: Path) -> None:
    known = id_of(begin(folder, config()))
    again = begin(folder, config())
    assert id_of(again) == known, "before the first checkpoint, for what waits in staging"
    give_checkpoint(again, tmp_path)
    assert id_of(begin(folder, config({"training.logging_steps": 7}))) == known


def test_before_the_first_checkpoint_another_experiment_begins_clean(folder: RunFolder) -> None:
    first = begin(folder, config())
    known = id_of(first)
    first.append(lambda state: {"kind": "prepared", "attempt": 1, "processor": 1})
    writer = group_of(first, "x")
    second = begin(folder, config({"model.d_model": 32}))
    assert id_of(second) != known
    assert second.check().processor is None, "the old sizes must not be taken for the new"
    assert not writer.holds(second.check()), "two experiments never share a folder"


OTHER_DATA = "other recordings, transcripts or ways to prepare them"


@pytest.mark.parametrize(
    ("changes", "data", "shown"),
    [
        ({"run.seed": 1}, DATA, "run.seed: 42 → 1"),
        ({"scaling.num_workers": 3}, DATA, ": utterances of an optimizer step: 16 → 48; --set"),
        ({"training.training_args": {"adam_beta2": 0.9}}, DATA, "training.training_args.adam_beta2: None → 0.9"),
        ({"data.do_normalize_eval": False}, DATA, "data.normalizer: 'basic 1' → 'none 1'"),
        ({}, {**DATA, "train": "z"}, f"data.train: {OTHER_DATA} (a → z)"),
        ({}, {**DATA, "validation": "z"}, f"data.validation: {OTHER_DATA} (b → z)"),
    ],
)
def test_what_changes_the_mathematics_or_the_ranking_is_refused(
    folder: RunFolder, tmp_path: Path, changes: dict[str, Any], data: dict[str, str], shown: str
) -> None:
    give_checkpoint(begin(folder, config()), tmp_path)
    before = Journal(folder).read()
    with pytest.raises(ResumeError) as caught:
        begin(folder, config(changes), data)
    assert shown in str(caught.value)
    assert Journal(folder).read() == before, "what is refused fences nobody"


def test_workers_may_change_where_the_global_batch_is_given() -> None:
    two, three = (
        described(config({"training.global_batch_size": 32, "scaling.num_workers": workers})) for workers in (2, 3)
    )
    assert two == three


def test_loading_and_logging_arguments_are_no_part_of_it() -> None:
    assert described(config({"training.training_args": {"dataloader_num_workers": 4}})) == described(config())


def test_fewer_steps_than_were_trained_are_refused(folder: RunFolder, tmp_path: Path) -> None:
    give_checkpoint(begin(folder, config()), tmp_path, step=8)
    with pytest.raises(ResumeError, match="the run is at step 8"):
        begin(folder, config({"training.max_steps": 5, "training.extend": "rescale"}))


def test_never_refuses_a_run_that_has_begun_but_not_its_own_retry(folder: RunFolder, tmp_path: Path) -> None:
    never = config({"run.resume": "never"})
    give_checkpoint(begin(folder, never, number=1), tmp_path)
    with pytest.raises(ResumeError, match=r"run\.resume is never"):
        begin(folder, never)
    assert begin(folder, never, number=2).attempt == 2


def test_a_finished_run_is_not_finished_for_another_test_set(folder: RunFolder) -> None:
    result = {"max_steps": 10, "num_train_epochs": None, "test_data": "c"}
    state = State(finished=Finished(1, "attempts/1/outputs-x", (), result))
    assert finished(state, folder, config(), DATA)
    assert not finished(state, folder, config({"training.max_steps": 11}), DATA)
    assert not finished(State(), folder, config(), DATA)
    with pytest.raises(ResumeError, match="rayscribe evaluate"):
        finished(state, folder, config(), {**DATA, "test": "other"})


class TestDecodedFiles:
    def test_are_the_same_wherever_they_are(self, folder: RunFolder, tmp_path: Path) -> None:
        state, wanted = self._scored(tmp_path / "package-1"), self._wanted(tmp_path / "package-2")
        assert finished(state, folder, wanted, DATA)

    @pytest.mark.parametrize("name", ["lexicon", "lm"])
    def test_are_others_where_their_content_is(self, name: str, folder: RunFolder, tmp_path: Path) -> None:
        state, wanted = self._scored(tmp_path), self._wanted(tmp_path)
        (tmp_path / name).write_text("other")
        with pytest.raises(ResumeError, match="was scored with other decode settings"):
            finished(state, folder, wanted, DATA)

    def test_are_known_by_their_paths_where_they_are_gone(self, folder: RunFolder, tmp_path: Path) -> None:
        state, wanted = self._scored(tmp_path), self._wanted(tmp_path)
        (tmp_path / "lm").unlink()
        assert finished(state, folder, wanted, DATA)
        moved = wanted.decode.model_copy(update={"lm": "/elsewhere/lm"})
        with pytest.raises(ResumeError, match="was scored with other decode settings"):
            finished(state, folder, wanted.model_copy(update={"decode": moved}), DATA)

    def _wanted(self, files: Path) -> TrainConfig:
        files.mkdir(exist_ok=True)
        for name in ("lexicon", "lm"):
            (files / name).write_text(f"a {name}")
        decode = {"method": "beam", "lexicon": str(files / "lexicon"), "lm": str(files / "lm")}
        return config({"model": {"init": "scratch", "family": "ctc"}, "decode": decode})

    def _scored(self, files: Path) -> State:
        decode = self._wanted(files).decode
        hashes = {name: {"sha256": sha256_of(files / name)} for name in ("lexicon", "lm")}
        scored = {"decode": decode.model_dump(mode="json"), "test": {"decoding": hashes}}
        result = {"max_steps": 10, "num_train_epochs": None, "test_data": "c", **scored}
        return State(finished=Finished(1, "attempts/1/outputs-x", (), result))


@pytest.mark.parametrize("trainer", ["huggingface", "script"])
def test_a_folder_of_a_run_of_another_kind_is_refused(folder: RunFolder, trainer: str) -> None:
    refuse_another_trainer(Journal(folder).read(), folder, trainer)
    program = {"trainer": "script"} if trainer == "script" else {}
    experiment = {"id": "e1", **program}
    assert Driver.open(folder, Journal(folder), None, lambda state: experiment) is not None
    state = Journal(folder).read()
    refuse_another_trainer(state, folder, trainer)
    other = "script" if trainer == "huggingface" else "huggingface"
    with pytest.raises(ResumeError, match=f"holds a run with trainer: {trainer}, and this recipe has trainer: {other}"):
        refuse_another_trainer(state, folder, other)


@pytest.mark.parametrize("left", [RESULT, f"{CHECKPOINTS}/checkpoint-8-a1-x/optimizer.pt"])
def test_a_run_without_its_journal_is_refused_instead_of_begun_anew(folder: RunFolder, left: str) -> None:
    refuse_without_journal(Journal(folder).read(), folder)
    folder.storage.write_bytes(left, b"{}")
    with pytest.raises(ResumeError, match="no journal"):
        refuse_without_journal(Journal(folder).read(), folder)
