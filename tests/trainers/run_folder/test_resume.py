"""Where a worker group starts."""

from pathlib import Path

import pytest

from tests.trainers.run_folder.writers import begin, first_group, group_of, staged
from trainers.config.storage_location import StorageOptions
from trainers.distributed.session import LocalSession
from trainers.errors import FencedError, ResumeError, StorageError
from trainers.run_folder import staging as staging_module
from trainers.run_folder.checkpoints import RetentionPolicy, list_checkpoints, quarantine, upload_staged
from trainers.run_folder.fencing import Driver, GroupWriter
from trainers.run_folder.journal import Journal
from trainers.run_folder.layout import CHECKPOINTS, RunFolder
from trainers.run_folder.resume import fetch_best, fetch_weights, named_checkpoint, starting_point, take_over
from trainers.run_folder.staging import Staging
from trainers.storage import open_storage

ALONE = LocalSession(0, 1, 0)
KEEP_ALL = RetentionPolicy(None, "eval_wer")


@pytest.fixture(autouse=True)
def own_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Staging in a folder of the test."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "disk"))
    (tmp_path / "disk").mkdir()
    monkeypatch.setattr(staging_module, "FENCED_GROUP_TIMEOUT_S", 0.0)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """An empty run folder."""
    return RunFolder(open_storage(str(tmp_path / "run")))


def leave(run_id: str, step: int) -> None:
    """What a killed worker group leaves whole on its disk."""
    group = Staging.open(run_id, ALONE)
    staged(group.folder, step)


def enter(
    driver: Driver, run_id: str = "run", *, managed_by_service: bool = False, retention: RetentionPolicy = KEEP_ALL
) -> tuple[Staging, GroupWriter]:
    """A worker group that takes the run over."""
    staging = Staging.open(run_id, ALONE)
    writer = GroupWriter.of(driver.folder, driver.attempt, staging.group)
    take_over(staging, writer, retention, ALONE, managed_by_service=managed_by_service)
    return staging, writer


def test_what_a_killed_group_left_whole_is_brought_home(folder: RunFolder) -> None:
    leave("run", 20)
    enter(begin(folder))
    assert [item.step for item in list_checkpoints(folder)] == [20]


def test_all_that_a_killed_group_left_complete_is_uploaded_and_the_best_of_it_stays(
    folder: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    group = Staging.open("run", ALONE)
    for step, wer in ((20, 10.0), (30, 40.0)):
        staged(group.folder, step, wer)
    group.release()
    keep_one = RetentionPolicy(1, "eval_wer")
    enter(begin(folder), retention=keep_one)
    assert [item.step for item in list_checkpoints(folder)] == [20, 30]
    best = keep_one.best(list_checkpoints(folder))
    assert best is not None and best.step == 20
    assert [line.split("-")[1] for line in capsys.readouterr().out.splitlines() if "left complete" in line] == [
        "20",
        "30",
    ]


@pytest.mark.parametrize("kill_at", ["upload_file", "create_exclusive"])
def test_a_second_kill_while_they_are_uploaded_loses_none(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, kill_at: str
) -> None:
    group = Staging.open("run", ALONE)
    for step in (20, 30, 40):
        staged(group.folder, step)
    group.release()
    driver, storage = begin(folder), type(folder.storage)
    act, calls = getattr(storage, kill_at), []

    def killed(*args: object) -> object:
        # The second checkpoint's first file; the second checkpoint's entry, after that of the group.
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return act(*args)

    next_group = Staging.open("run", ALONE)
    writer = GroupWriter.of(folder, driver.attempt, next_group.group)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(storage, kill_at, killed)
        take_over(next_group, writer, KEEP_ALL, ALONE, managed_by_service=False)
    assert [item.step for item in list_checkpoints(folder)] == [20]
    next_group.release()
    enter(driver)
    assert [item.step for item in list_checkpoints(folder)] == [20, 30, 40]


def test_what_is_behind_or_of_another_run_is_not(folder: RunFolder, tmp_path: Path) -> None:
    driver = begin(folder)
    upload_staged(staged(tmp_path / "old", 30), group_of(driver, "x"), KEEP_ALL)
    leave("run", 20)
    leave("another run", 99)
    staging, _ = enter(driver)
    assert [item.step for item in list_checkpoints(folder)] == [30]
    assert staging.wait_for_earlier_groups(managed_by_service=False, log=print) == [], "what was left is removed"


def test_a_group_that_is_alive_is_not_robbed(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging_module, "KILLED_GROUP_TIMEOUT_S", 0.0)
    first = begin(folder)
    alive, writer = enter(first)
    staged(alive.folder, 20)
    second = begin(folder)
    with pytest.raises(ResumeError, match="another attempt of this run trains on this node"):
        enter(second)
    assert (alive.folder / "checkpoint-20-a1-x").is_dir()
    upload_staged(alive.folder / "checkpoint-20-a1-x", writer, KEEP_ALL)
    assert [item.step for item in list_checkpoints(folder)] == [20], "the refused one has not fenced it either"


def test_a_living_group_is_left_alone_and_fenced_where_a_service_counts(
    folder: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    alive, stale = enter(begin(folder, number=1), managed_by_service=True)
    staged(alive.folder, 20)
    staging, _ = enter(begin(folder, number=2), managed_by_service=True)
    assert "an older worker group is still alive" in capsys.readouterr().out
    staging.remove()
    with pytest.raises(FencedError):
        upload_staged(alive.folder / "checkpoint-20-a1-x", stale, KEEP_ALL)
    assert list_checkpoints(folder) == []
    alive.remove()
    assert not alive.root.exists(), "the last one out leaves nothing"


def test_a_stale_group_enters_nothing_and_clears_nothing_away(folder: RunFolder) -> None:
    stale = begin(folder, number=1)
    begin(folder, number=2)
    leave("run", 20)
    with pytest.raises(FencedError, match="attempt 2 has taken this run over"):
        enter(stale, managed_by_service=True)
    assert list_checkpoints(folder) == []
    enter(begin(folder, number=3), managed_by_service=True)
    assert [item.step for item in list_checkpoints(folder)] == [20], "what waited is still there"


def test_trouble_with_the_storage_is_no_reason_to_go_back(
    folder: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = first_group(folder)
    for step in (10, 20):
        upload_staged(staged(tmp_path / "made", step), writer, KEEP_ALL)

    def down(*_: object) -> None:
        raise StorageError("the storage does not answer")

    monkeypatch.setattr(type(folder.storage), "download_file", down)
    with pytest.raises(StorageError, match="does not answer"):
        starting_point(Staging.open("run", ALONE), writer, ALONE)
    assert [item.step for item in list_checkpoints(folder)] == [10, 20]


def test_when_no_checkpoint_is_whole_the_run_does_not_begin_anew(folder: RunFolder, tmp_path: Path) -> None:
    writer = first_group(folder)
    home = upload_staged(staged(tmp_path / "made", 10), writer, KEEP_ALL)
    folder.storage.write_bytes(f"{CHECKPOINTS}/{home.name}/optimizer.pt", b"other")
    with pytest.raises(ResumeError, match="all 1 checkpoints are damaged"):
        starting_point(Staging.open("run", ALONE), writer, ALONE)


def test_where_the_best_is_damaged_the_best_of_the_others_ends_the_run(
    folder: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = first_group(folder)
    for step, wer in ((10, 30.0), (20, 10.0), (30, 20.0)):
        upload_staged(staged(tmp_path / "made", step, wer), writer, KEEP_ALL)
    folder.storage.write_bytes(f"{CHECKPOINTS}/checkpoint-20-a1-x/model.safetensors", b"other")
    staging = Staging.open("run", ALONE)
    found = fetch_best(staging, writer, KEEP_ALL, ALONE)
    assert found is not None
    assert (found[0].step, found[1]) == (30, staging.folder / "best")
    assert (found[1] / "model.safetensors").stat().st_size == 30 * 256, "nothing of the damaged one is left"
    assert [item.step for item in list_checkpoints(folder)] == [10, 30], "it is never chosen again"
    assert "checkpoint-20-a1-x" in capsys.readouterr().out


def test_where_all_are_damaged_the_run_says_so(folder: RunFolder, tmp_path: Path) -> None:
    writer = first_group(folder)
    staging = Staging.open("run", ALONE)
    assert fetch_best(staging, writer, KEEP_ALL, ALONE) is None
    for step in (10, 20):
        upload_staged(staged(tmp_path / "made", step), writer, KEEP_ALL)
        folder.storage.write_bytes(f"{CHECKPOINTS}/checkpoint-{step}-a1-x/model.safetensors", b"other")
    with pytest.raises(ResumeError, match="all 2 checkpoints are damaged"):
        fetch_best(staging, writer, KEEP_ALL, ALONE)


def test_a_named_checkpoint_must_be_an_absolute_whole_one(tmp_path: Path) -> None:
    with pytest.raises(ResumeError, match="absolute folder"):
        named_checkpoint("checkpoint-10", StorageOptions())
    with pytest.raises(ResumeError, match=r"no MANIFEST\.json"):
        named_checkpoint(str(tmp_path), StorageOptions())


def test_a_named_checkpoint_must_be_in_its_run_s_journal(folder: RunFolder, tmp_path: Path) -> None:
    other = RunFolder(open_storage(str(tmp_path / "other")))
    theirs = first_group(other)
    good, bad = (upload_staged(staged(tmp_path / "made", step), theirs, KEEP_ALL) for step in (10, 20))
    manifest = other.storage.read_bytes(f"{CHECKPOINTS}/{bad.name}/MANIFEST.json")
    quarantine(theirs, bad.name)
    other.storage.write_bytes(f"{CHECKPOINTS}/{bad.name}/MANIFEST.json", manifest)
    with pytest.raises(ResumeError, match="journal does not name it"):
        named_checkpoint(f"{other.url}/{CHECKPOINTS}/{bad.name}", StorageOptions())
    staging, writer = enter(begin(folder))
    checkpoint, local = fetch_weights(f"{other.url}/{CHECKPOINTS}/{good.name}", StorageOptions(), staging, ALONE)
    assert checkpoint.name == good.name
    assert {path.name for path in local.iterdir()} == set(good.files) - {"optimizer.pt"}, "a new run has its own"
    assert starting_point(staging, writer, ALONE) is None, "it is the other run's, not this one's"
    assert Journal(folder).read().checkpoints == ()
