"""Where a worker group starts."""

from pathlib import Path

import pytest

from tests.trainers.test_checkpoints import staged
from trainers import resume
from trainers.checkpoints import bring_home, list_checkpoints
from trainers.config import RunPart
from trainers.errors import ResumeError, StorageError
from trainers.resume import Staging, recover_staged, starting_point
from trainers.session import LoneSession
from trainers.storage import Storage, open_storage

ALONE = LoneSession(0, 1, 0)


@pytest.fixture(autouse=True)
def own_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Staging in a folder of the test."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "disk"))
    (tmp_path / "disk").mkdir()


@pytest.fixture
def checkpoints(tmp_path: Path) -> Storage:
    """A run's checkpoints folder."""
    return open_storage(str(tmp_path / "run/checkpoints"))


def leave(run_id: str, step: int) -> None:
    """What a killed worker group leaves whole on its disk."""
    group = Staging.open(run_id, ALONE)
    staged(group.folder, step)


def test_what_a_killed_group_left_whole_is_brought_home(checkpoints: Storage) -> None:
    leave("run", 20)
    recover_staged(Staging.open("run", ALONE), checkpoints, ALONE)
    assert [item.step for item in list_checkpoints(checkpoints)] == [20]


def test_what_is_behind_or_of_another_run_is_not(checkpoints: Storage, tmp_path: Path) -> None:
    bring_home(staged(tmp_path / "old", 30), checkpoints)
    leave("run", 20)
    leave("another run", 99)
    staging = Staging.open("run", ALONE)
    recover_staged(staging, checkpoints, ALONE)
    assert [item.step for item in list_checkpoints(checkpoints)] == [30]
    assert staging.others() == [], "what was left is removed"


def test_a_group_that_is_alive_is_not_robbed(checkpoints: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resume, "DYING_S", 0.0)
    alive = Staging.open("run", ALONE)
    staged(alive.folder, 20)
    with pytest.raises(ResumeError, match="another attempt of this run trains on this node"):
        recover_staged(Staging.open("run", ALONE), checkpoints, ALONE)
    assert (alive.folder / "checkpoint-20-a1-x").is_dir()


def test_trouble_with_the_storage_is_no_reason_to_go_back(
    checkpoints: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (10, 20):
        bring_home(staged(tmp_path / "made", step), checkpoints)

    def down(*_: object) -> None:
        raise StorageError("the storage does not answer")

    monkeypatch.setattr(type(checkpoints), "download_file", down)
    with pytest.raises(StorageError, match="does not answer"):
        starting_point(RunPart(), Staging.open("run", ALONE), checkpoints, ALONE)
    assert [item.step for item in list_checkpoints(checkpoints)] == [10, 20]


def test_when_no_checkpoint_is_whole_the_run_does_not_begin_anew(checkpoints: Storage, tmp_path: Path) -> None:
    home = bring_home(staged(tmp_path / "made", 10), checkpoints)
    checkpoints.write_bytes(f"{home.name}/optimizer.pt", b"other")
    with pytest.raises(ResumeError, match="none of 1 checkpoints is whole"):
        starting_point(RunPart(), Staging.open("run", ALONE), checkpoints, ALONE)


def test_a_named_checkpoint_must_be_an_absolute_whole_one(checkpoints: Storage, tmp_path: Path) -> None:
    staging = Staging.open("run", ALONE)
    with pytest.raises(ResumeError, match="absolute folder"):
        starting_point(RunPart(resume="from:checkpoint-10"), staging, checkpoints, ALONE)
    with pytest.raises(ResumeError, match=r"no MANIFEST\.json"):
        starting_point(RunPart(resume=f"from:{tmp_path}"), staging, checkpoints, ALONE)
