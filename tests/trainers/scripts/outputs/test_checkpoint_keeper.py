"""Each complete checkpoint of a program is stored and entered in the journal, and nothing else ever is."""

import contextlib
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.settings import examples
from tests.trainers.run_folder.test_random_failures import ONCE, Failing, Killed
from tests.trainers.run_folder.test_stale_writers import TurnedStorage
from tests.trainers.run_folder.writers import begin, first_group, group_of
from tests.trainers.scripts.outputs.programs import (
    DictBoard,
    begin_trainer_checkpoint,
    node_output,
    save_archive,
    write_brain_checkpoint,
    write_trainer_checkpoint,
)
from trainers.errors import FencedError, StorageError
from trainers.run_folder.checkpoints import RetentionPolicy, fetch_files, list_checkpoints, newest, sweep
from trainers.run_folder.fencing import GroupWriter
from trainers.run_folder.layout import CHECKPOINTS, RunFolder
from trainers.scripts.outputs.checkpoint_keeper import CheckpointKeeper
from trainers.scripts.outputs.layouts import UNMARKED_STABLE_S, layouts_for
from trainers.scripts.outputs.parts import PartCollector
from trainers.scripts.outputs.restore import restore
from trainers.storage.local_folder import LocalStorage

KEEP_ALL = RetentionPolicy(None, "eval_wer")


@dataclass
class Kept:
    """A keeper of a program's output folder, with a clock of its own, and what it has said."""

    writer: GroupWriter
    folder: Path
    pattern: str = "auto"
    retention: RetentionPolicy = KEEP_ALL
    now_s: float = 0.0
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        say, pattern = self.said.append, self.pattern
        output = node_output(
            self.folder, self.writer.folder, DictBoard(), pattern=pattern, say=say, clock=lambda: self.now_s
        )
        self.keeper = CheckpointKeeper(output, self.writer, self.retention, PartCollector(output))
        self.keeper.begin()

    def look(self) -> None:
        self.keeper.keep_new()

    def settle(self) -> None:
        """Looks twice, between which nothing changes for long enough."""
        self.look()
        self.now_s += UNMARKED_STABLE_S
        self.look()

    def end(self, *, well: bool) -> None:
        self.keeper.keep_new(ended_well=well)

    @property
    def steps(self) -> list[int]:
        return [item.step for item in list_checkpoints(self.writer.folder)]


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder(LocalStorage(str(tmp_path / "run"), ONCE))


def test_one_is_kept_once_it_is_complete_and_does_not_change(tmp_path: Path, run: RunFolder) -> None:
    kept = Kept(first_group(run), tmp_path / "out")
    path = begin_trainer_checkpoint(kept.folder, 10)
    kept.settle()
    assert kept.steps == []
    write_state = path / "trainer_state.json"
    write_state.write_text("{}")
    kept.look()
    assert kept.steps == []
    kept.settle()
    kept.settle()
    (entered,) = list_checkpoints(run)
    assert entered.name == "checkpoint-10-a1-x"
    assert set(entered.files) == {f"checkpoint-10/{file.name}" for file in path.iterdir()}
    assert path.is_dir(), "it is the program's own"
    fetch_files(run.storage.sub(CHECKPOINTS), entered, tmp_path / "back")
    assert (tmp_path / "back/checkpoint-10/model.safetensors").read_bytes() == (path / "model.safetensors").read_bytes()


def test_the_journal_has_its_scores_and_drops_what_is_not_kept(tmp_path: Path, run: RunFolder) -> None:
    kept = Kept(first_group(run), tmp_path / "out", retention=RetentionPolicy(1, "eval_wer"))
    for step, wer in ((10, 0.2), (20, 0.3), (30, 0.4)):
        write_trainer_checkpoint(kept.folder, step, wer=wer)
        kept.settle()
    assert [(item.step, item.metrics["eval_wer"]) for item in list_checkpoints(run)] == [(10, 20.0), (30, 40.0)]


def test_without_scores_the_newest_stay(tmp_path: Path, run: RunFolder) -> None:
    kept = Kept(first_group(run), tmp_path / "out", retention=RetentionPolicy(2, "eval_wer"))
    for step in (10, 20, 30):
        write_brain_checkpoint(kept.folder, step)
        kept.settle()
    assert kept.steps == [20, 30]


def test_several_are_kept_in_the_order_of_their_steps(tmp_path: Path, run: RunFolder) -> None:
    kept = Kept(first_group(run), tmp_path / "out")
    for step in (100, 20, 3):
        write_trainer_checkpoint(kept.folder, step)
    kept.settle()
    assert kept.steps == [3, 20, 100]


def test_what_was_there_before_the_program_is_not_kept(tmp_path: Path, run: RunFolder) -> None:
    path = write_trainer_checkpoint(tmp_path / "out", 5000)
    kept = Kept(first_group(run), tmp_path / "out")
    kept.settle()
    assert kept.steps == []
    shutil.rmtree(path)
    write_trainer_checkpoint(tmp_path / "out", 5000)
    kept.settle()
    assert kept.steps == [5000]


def test_a_file_that_is_written_again_and_again_is_a_new_one_each_time(tmp_path: Path, run: RunFolder) -> None:
    kept = Kept(first_group(run), tmp_path / "out", "snapshot.pt")
    kept.folder.mkdir()
    for number in range(1, 4):
        save_archive(kept.folder / "snapshot.pt", b"x" * number)
        kept.settle()
    assert kept.steps == [1, 2, 3]
    again = Kept(group_of(begin(run), "y"), tmp_path / "out", "snapshot.pt")
    again.settle()
    save_archive(kept.folder / "snapshot.pt", b"y")
    again.settle()
    assert again.steps == [1, 2, 3, 4]


def test_another_one_of_the_same_step_has_a_name_of_its_own(tmp_path: Path, run: RunFolder) -> None:
    kept = Kept(first_group(run), tmp_path / "out")
    path = write_trainer_checkpoint(kept.folder, 10)
    kept.settle()
    (path / "README.md").write_text("model card")
    kept.settle()
    assert [item.name for item in list_checkpoints(run)] == ["checkpoint-10-a1-x", "checkpoint-10-a1-2-x"]
    sweep(group_of(begin(run), "y"))
    assert len(run.storage.list_folders(CHECKPOINTS)) == 2


@pytest.mark.parametrize("well", [True, False])
def test_at_the_end_the_last_one_of_the_trainer_is_kept(tmp_path: Path, run: RunFolder, well: bool) -> None:
    kept = Kept(first_group(run), tmp_path / "out")
    write_trainer_checkpoint(kept.folder, 10)
    begin_trainer_checkpoint(kept.folder, 20)
    kept.end(well=well)
    kept.keeper.say_what_is_left()
    assert kept.steps == [10]
    assert kept.said == ["checkpoint-20 is not kept: nothing shows that the program has completed it"]


def test_after_a_bad_end_one_of_speechbrain_must_have_the_files_of_the_others(tmp_path: Path, run: RunFolder) -> None:
    kept = Kept(first_group(run), tmp_path / "out")
    write_brain_checkpoint(kept.folder, 10)
    kept.end(well=False)
    assert kept.steps == [], "nothing says that no file is to come"
    kept.settle()
    write_brain_checkpoint(kept.folder, 20)
    (write_brain_checkpoint(kept.folder, 30) / "optimizer.ckpt").unlink()
    model = write_brain_checkpoint(kept.folder, 40) / "model.ckpt"
    model.write_bytes(model.read_bytes()[:-30])
    # Which says its epoch, 3, in another file.
    (write_brain_checkpoint(kept.folder, 50) / "brain.ckpt").write_bytes(b"")
    kept.end(well=False)
    assert kept.steps == [10, 20]
    kept.end(well=True)
    assert kept.steps == [3, 10, 20, 30], "it has come to its own end, but a cut archive is cut"


@dataclass(frozen=True)
class Interrupted(LocalStorage):
    """Does something before each upload."""

    before: Callable[[str], None] = lambda key: None

    def sub(self, prefix: str) -> "Interrupted":
        return Interrupted(self.url(prefix) if prefix else self.root, self.retry, before=self.before)

    def upload_file(self, local: Path, key: str) -> None:
        self.before(key)
        super().upload_file(local, key)


def interrupted(run: RunFolder, before: Callable[[str], None]) -> GroupWriter:
    """A writer of the first group whose storage does something before each upload."""
    first_group(run)
    return GroupWriter.of(RunFolder(Interrupted(run.url, ONCE, before=before)), 1, "x")


def test_one_that_the_program_deletes_while_it_is_read_is_kept(tmp_path: Path, run: RunFolder) -> None:
    out = tmp_path / "out"
    kept = Kept(interrupted(run, lambda key: shutil.rmtree(out / "checkpoint-3", ignore_errors=True)), out)
    path = write_trainer_checkpoint(out, 3)
    kept.settle()
    assert not path.exists()
    (entered,) = list_checkpoints(run)
    fetch_files(run.storage.sub(CHECKPOINTS), entered, tmp_path / "back")


def test_one_that_the_program_changes_while_it_is_read_is_not_kept(tmp_path: Path, run: RunFolder) -> None:
    out, changes = tmp_path / "out", ["{}"]

    def change(key: str) -> None:
        if key.endswith("optimizer.pt") and changes:
            (out / "checkpoint-3/trainer_state.json").write_text(changes[0])

    kept = Kept(interrupted(run, change), out)
    write_trainer_checkpoint(out, 3)
    kept.settle()
    assert (kept.steps, run.storage.list_folders(CHECKPOINTS)) == ([], [])
    changes.clear()
    kept.settle()
    (entered,) = list_checkpoints(run)
    # Other nodes may have stored what they had of the first.
    assert entered.name == "checkpoint-3-a1-2-x"


def test_a_storage_that_fails_is_tried_again_until_there_is_a_newer_one(
    tmp_path: Path, run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainers.scripts.outputs.checkpoint_keeper.RETRY_S", 0.0)
    refused = {"checkpoint-3/optimizer.pt", "checkpoint-6/optimizer.pt"}

    def refuse(key: str) -> None:
        if key in refused:
            raise StorageError(f"{key}: away")

    kept = Kept(interrupted(run, refuse), tmp_path / "out")
    path = write_trainer_checkpoint(kept.folder, 3)
    for _ in range(2):
        with pytest.raises(StorageError, match="away"):
            kept.settle()
    shutil.rmtree(path)
    refused.remove("checkpoint-3/optimizer.pt")
    kept.settle()
    assert kept.steps == [3], "the program has deleted it in the meantime"
    write_trainer_checkpoint(kept.folder, 6)
    with pytest.raises(StorageError, match="away"):
        kept.settle()
    write_trainer_checkpoint(kept.folder, 9)
    with pytest.raises(StorageError, match="away"):
        kept.look()
    assert kept.said == []
    kept.now_s += UNMARKED_STABLE_S
    with pytest.raises(StorageError, match="away"):
        kept.look()
    assert kept.said == ["checkpoint-6 could not be kept: checkpoint-6/optimizer.pt: away"]
    kept.settle()
    assert kept.steps == [3, 9]
    assert len(run.storage.list_folders(CHECKPOINTS)) == 2


def test_a_group_that_another_has_replaced_enters_nothing(tmp_path: Path, run: RunFolder) -> None:
    kept = Kept(first_group(run), tmp_path / "out")
    group_of(begin(run), "y")
    write_trainer_checkpoint(kept.folder, 3)
    with pytest.raises(FencedError):
        kept.settle()
    assert list_checkpoints(run) == []


def train(root: str, made: Path, failing: Callable[[], None]) -> list[int]:
    """A worker group of a program that saves every step up to 4, from its last checkpoint on; gives the journal's."""
    run = RunFolder(LocalStorage(root, ONCE))
    driver = begin(run)
    group = group_of(driver, f"g{driver.attempt}")
    sweep(group)
    out = Path(tempfile.mkdtemp(dir=made)) / "out"
    start = restore(run, group.check(), out, layouts_for("auto"))
    writer = GroupWriter.of(RunFolder(TurnedStorage(root, ONCE, wait=failing)), driver.attempt, group.group.id)
    kept = Kept(writer, out, retention=RetentionPolicy(2, "eval_wer"))
    for step in range((start.step or 0) + 1 if start is not None else 1, 5):
        write_trainer_checkpoint(out, step, wer=step / 10)
        failing()
        kept.settle()
    kept.end(well=True)
    return [item.step for item in list_checkpoints(run)]


@settings(max_examples=examples(10), deadline=None)
@given(st.lists(st.tuples(st.integers(1, 50), st.booleans()), max_size=3))
def test_a_kill_or_fault_at_any_call_leaves_no_half_checkpoint_in_the_journal(failures: list[tuple[int, bool]]) -> None:
    with tempfile.TemporaryDirectory() as made, pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda descriptor: None)
        root, before = f"{made}/run", 0
        run = RunFolder(LocalStorage(root, ONCE))
        for call, kills in failures:
            with contextlib.suppress(Killed, StorageError):
                train(root, Path(made), Failing(call, kills))
            entered = list_checkpoints(run)
            for number, item in enumerate(entered):
                fetch_files(run.storage.sub(CHECKPOINTS), item, Path(made, f"fetched-{number}"))
                assert f"checkpoint-{item.step}/trainer_state.json" in item.files
            last = newest(entered)
            assert (last.step if last is not None else 0) >= before
            before = last.step if last is not None else 0
        assert train(root, Path(made), lambda: None) == [1, 2, 4]
        assert len(run.storage.list_folders(CHECKPOINTS)) == 3
