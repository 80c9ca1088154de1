"""A program finds its last checkpoint again, under its own name, and nothing that would mislead it."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from tests.trainers.run_folder.writers import begin, first_group, group_of
from tests.trainers.scripts.outputs.programs import (
    begin_trainer_checkpoint,
    save_archive,
    write_brain_checkpoint,
    write_trainer_checkpoint,
)
from trainers.errors import ResumeError, StorageError
from trainers.run_folder.checkpoints import RetentionPolicy, enter, store_files
from trainers.run_folder.fencing import GroupWriter
from trainers.run_folder.journal import Checkpoint, Journal
from trainers.run_folder.layout import CHECKPOINTS, RunFolder
from trainers.scripts.outputs.checkpoint_keeper import NewestAndBest
from trainers.scripts.outputs.layouts import FoundCheckpoint, files_of, layouts_for
from trainers.scripts.outputs.restore import give_back_files, restore
from trainers.storage import Storage, open_storage

KNOWN = layouts_for("auto")
KEEP_ALL = RetentionPolicy(None, "eval_wer")


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder(open_storage(str(tmp_path / "run")))


def keep(
    writer: GroupWriter, folder: Path, path: Path, step: int, metrics: Mapping[str, float] = MappingProxyType({})
) -> Checkpoint:
    """Enters a checkpoint of an output folder in the journal."""
    name, names = f"checkpoint-{step}-a1-x", [file.relative_to(folder).as_posix() for file in files_of(path)]
    files = store_files(folder, names, writer.folder.storage.sub(f"{CHECKPOINTS}/{name}"))
    checkpoint = Checkpoint(name, step, 1, dict(metrics), "2026-01-01T00:00:00+00:00", files)
    enter(checkpoint, writer, KEEP_ALL)
    return checkpoint


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def content_of(folder: Path) -> dict[str, bytes]:
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in files_of(folder)}


def test_the_newest_is_put_back_as_it_was(tmp_path: Path, storage: Storage) -> None:
    run, out, back = RunFolder(storage), tmp_path / "out", tmp_path / "other node" / "back"
    writer = first_group(run)
    for step in (9, 10):
        keep(writer, out, write_trainer_checkpoint(out, step), step)
    assert restore(run, writer.check(), back, KNOWN) == FoundCheckpoint("checkpoint-10", 10, True)
    assert names_in(back) == ["checkpoint-10"]
    assert content_of(back / "checkpoint-10") == content_of(out / "checkpoint-10")
    assert names_in(back.parent) == ["back"]


def test_a_run_without_one_makes_no_folder(tmp_path: Path, run: RunFolder) -> None:
    assert restore(run, first_group(run).check(), tmp_path / "a/out", KNOWN) is None
    assert not (tmp_path / "a/out").exists()


@pytest.mark.parametrize(("num_to_keep", "steps"), [(None, ["02", "03"]), (3, ["01", "02", "03"])])
def test_the_best_is_put_back_too_and_all_that_speechbrain_may_average(
    tmp_path: Path, run: RunFolder, num_to_keep: int | None, steps: list[str]
) -> None:
    out, writer = tmp_path / "out", first_group(run)
    for step, wer in ((1, 5.0), (2, 3.0), (3, 4.0)):
        keep(writer, out, write_brain_checkpoint(out, step), step, {"eval_wer": wer})
    found = restore(run, writer.check(), tmp_path / "back", KNOWN, retention=NewestAndBest(num_to_keep))
    assert found is not None
    assert found.step == 3
    assert [name[-5:-3] for name in names_in(tmp_path / "back/save")] == steps


def test_small_files_are_put_back_as_the_last_attempt_had_them(tmp_path: Path, run: RunFolder) -> None:
    back = tmp_path / "back"
    for name, content in {
        "1/outputs/train_log.txt": b"epoch: 1\n",
        "1/outputs/save/label_encoder.txt": b"'A' => 1\n",
        "1/outputs/node-1/log.txt": b"of another node\n",
        "1/outputs-x/files/result.txt": b"of a group that has ended\n",
        "1/outputs/here.txt": b"stored\n",
        "2/outputs/train_log.txt": b"epoch: 1\nepoch: 2\n",
    }.items():
        run.storage.write_bytes(f"attempts/{name}", content)
    back.mkdir()
    (back / "here.txt").write_bytes(b"newer\n")
    localized: list[Path] = []
    names = give_back_files(run, 2, back, localized.append)
    assert names == {"train_log.txt", "save/label_encoder.txt"}
    assert {path.relative_to(back).as_posix() for path in localized} == names
    assert content_of(back) == {
        "here.txt": b"newer\n",
        "train_log.txt": b"epoch: 1\nepoch: 2\n",
        "save/label_encoder.txt": b"'A' => 1\n",
    }


@pytest.mark.parametrize("damage", ["changed", "missing"])
def test_a_damaged_one_is_passed_over(tmp_path: Path, run: RunFolder, damage: str) -> None:
    out, writer, said = tmp_path / "out", first_group(run), list[str]()
    for step in (1, 2):
        keep(writer, out, write_trainer_checkpoint(out, step), step)
    stored = Path(run.url, "checkpoints/checkpoint-2-a1-x/checkpoint-2/optimizer.pt")
    stored.unlink()
    if damage == "changed":
        stored.write_bytes(b"other")
    found = restore(run, writer.check(), tmp_path / "back", KNOWN, say=said.append)
    assert found == FoundCheckpoint("checkpoint-1", 1, True)
    assert names_in(tmp_path / "back") == ["checkpoint-1"]
    assert ["continues without it" in line for line in said] == [True]
    Path(run.url, "checkpoints/checkpoint-1-a1-x/checkpoint-1/optimizer.pt").unlink()
    with pytest.raises(ResumeError, match="all 2 checkpoints are damaged"):
        restore(run, writer.check(), tmp_path / "back", KNOWN, say=said.append)


def test_a_storage_that_is_away_damages_nothing(
    tmp_path: Path, run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, writer = tmp_path / "out", first_group(run)
    keep(writer, out, write_trainer_checkpoint(out, 1), 1)
    state = writer.check()

    def refuse(*arguments: object) -> None:
        raise StorageError("away")

    monkeypatch.setattr(type(run.storage), "download_file", refuse)
    with pytest.raises(StorageError, match="away"):
        restore(run, state, tmp_path / "back", KNOWN)


def test_what_a_killed_group_left_here_goes(tmp_path: Path, run: RunFolder) -> None:
    out, back = tmp_path / "out", tmp_path / "back"
    keep(first_group(run), out, write_trainer_checkpoint(out, 20), 20)
    state = group_of(begin(run), "y").check()
    write_trainer_checkpoint(back, 10)
    begin_trainer_checkpoint(back, 15)
    (begin_trainer_checkpoint(back, 20) / "stale.bin").write_bytes(b"stale")
    write_trainer_checkpoint(back, 30)
    begin_trainer_checkpoint(back, 40)
    (back / "log.txt").write_text("stays")
    restore(run, state, back, KNOWN)
    assert names_in(back) == ["checkpoint-10", "checkpoint-20", "log.txt"]
    assert content_of(back / "checkpoint-20") == content_of(out / "checkpoint-20")


def test_before_the_first_group_all_that_is_there_is_the_users(tmp_path: Path, run: RunFolder) -> None:
    back = tmp_path / "back"
    begin_trainer_checkpoint(back, 20)
    assert restore(run, first_group(run).check(), back, KNOWN) is None
    assert names_in(back) == ["checkpoint-20"]


def test_a_single_file_is_put_back_over_the_one_that_is_there(tmp_path: Path, run: RunFolder) -> None:
    out, back, writer = tmp_path / "out", tmp_path / "back", first_group(run)
    out.mkdir()
    back.mkdir()
    save_archive(out / "last.pt", b"saved")
    keep(writer, out, out / "last.pt", 3)
    save_archive(back / "last.pt", b"old")
    found = FoundCheckpoint("last.pt", 3, True)
    assert restore(run, writer.check(), back, layouts_for("last.pt")) == found
    assert content_of(back) == content_of(out)
    assert restore(run, writer.check(), back, layouts_for("another.pt")) == found


@pytest.mark.parametrize("name", ["../escaped", "/tmp/escaped", "checkpoint-1/../../escaped"])
def test_paths_in_the_journal_are_not_trusted(tmp_path: Path, run: RunFolder, name: str) -> None:
    out, writer = tmp_path / "out", first_group(run)
    checkpoint = keep(writer, out, write_trainer_checkpoint(out, 1), 1)
    files = {name: checkpoint.files["checkpoint-1/optimizer.pt"]}
    run.storage.write_bytes("checkpoints/escaped", b"x")
    forged = Checkpoint("checkpoint-2-a1-x", 2, 1, {}, checkpoint.created, files)
    writer.append(lambda state: {"kind": "checkpoint", "checkpoint": forged.__dict__, "removes": [checkpoint.name]})
    with pytest.raises(ResumeError, match="damaged"):
        restore(run, Journal(run).read(), tmp_path / "back", KNOWN)
    assert not list(tmp_path.rglob("back/*"))
