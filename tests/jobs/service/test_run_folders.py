import os
import threading
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from jobs.service import run_folders
from jobs.service.run_folders import PAUSE_S, RunFolders
from tests.jobs.sample import sample_run
from trainers.errors import RayscribeError, StorageError
from trainers.run_folder.attempt_status import read_status, status_key
from trainers.run_folder.layout import RunFolder

STEP_7 = '{"phase": "TRAINING", "step": 7, "max_steps": 9}'


def test_a_storage_that_hangs_is_left_alone_for_a_while_and_then_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [0.0]
    folders = RunFolders(timeout_s=0.2, clock=lambda: now_s[0])
    run, neighbor = (sample_run(run_folder=f"{tmp_path}/{name}") for name in ("sr", "neighbor"))
    other = sample_run(run_folder=f"{tmp_path}/elsewhere/sr")
    for folder in (run.run_folder, neighbor.run_folder, other.run_folder):
        path = Path(folder, status_key(1))
        path.parent.mkdir(parents=True)
        path.write_text(STEP_7)
    fixed = threading.Event()

    def reads(folder: RunFolder, attempt: int) -> dict[str, Any] | None:
        if folder.url == run.run_folder:
            fixed.wait()
        return read_status(folder, attempt)

    monkeypatch.setattr(run_folders, "read_status", reads)
    for unread in (run, neighbor):  # on the same storage
        with pytest.raises(StorageError, match=r"no response|did not respond"):
            folders.progress(unread, 1)
    assert (progress := folders.progress(other, 1)) is not None and progress.step == 7
    assert folders.resume_text(run).startswith(
        "auto: decided on the cluster, since the service cannot read the run folder"
    )
    fixed.set()
    with pytest.raises(StorageError, match="did not respond recently"):
        folders.progress(run, 1)
    now_s[0] += PAUSE_S
    assert folders.progress(run, 1) is not None
    assert folders.progress(neighbor, 1) is not None


@pytest.mark.parametrize(("key", "read"), [(status_key(1), "progress"), ("journal/00000001.json", "last_checkpoint")])
def test_a_file_of_gigabytes_is_not_read_into_memory(tmp_path: Path, key: str, read: str) -> None:
    path = tmp_path / key
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        file.truncate(1 << 31)
    folders, run = RunFolders(), sample_run(run_folder=str(tmp_path))
    calls: dict[str, Callable[[], object]] = {
        "progress": lambda: folders.progress(run, 1),
        "last_checkpoint": lambda: folders.last_checkpoint(run),
    }
    tracemalloc.start()
    with pytest.raises(RayscribeError, match="bytes"):
        calls[read]()
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 40 << 20


def test_many_large_entries_of_a_journal_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_folders, "MAX_JOURNAL_BYTES", 100)
    (tmp_path / "journal").mkdir()
    for number in (1, 2):
        (tmp_path / "journal" / f"{number:08}.json").write_text("0" * 60)
    text = RunFolders().resume_text(sample_run(run_folder=str(tmp_path)))
    assert text.endswith("the run's journal has 120 bytes, more than the limit of 100")


def test_no_checkpoint_is_told_from_a_folder_that_cannot_be_read(tmp_path: Path) -> None:
    folders = RunFolders()
    assert folders.resume_text(sample_run(run_folder=f"{tmp_path}/sr")) == (
        f"auto: no checkpoint is in {tmp_path}/sr, so it starts from pretrained weights"
    )
    assert folders.left_text(sample_run(run_folder=f"{tmp_path}/sr")) == "no checkpoint was made"
    elsewhere = sample_run(run_folder="hdfs://bucket/runs/sr")
    assert "the service cannot read the run folder: " in folders.resume_text(elsewhere)
    assert folders.left_text(elsewhere).startswith(
        "the service cannot read hdfs://bucket/runs/sr, so its last checkpoint is not known: "
    )


@pytest.mark.parametrize("key", [status_key(1), "journal/00000001.json"])
def test_a_pipe_in_a_run_folder_stops_nobody(tmp_path: Path, key: str) -> None:
    path = tmp_path / "sr" / key
    path.parent.mkdir(parents=True)
    os.mkfifo(path)
    folders = RunFolders()
    run, neighbor = (sample_run(run_folder=f"{tmp_path}/{name}") for name in ("sr", "neighbor"))
    with suppress(StorageError):
        assert folders.progress(run, 1) is None
    assert "no response" not in folders.resume_text(run)
    assert folders.last_checkpoint(neighbor) is None


def test_no_link_of_another_user_leads_to_a_run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The service lists /mnt/runs as a storage; a job on it may make a link there at any time.
    (tmp_path / "private/sr").mkdir(parents=True)
    (tmp_path / "storage").mkdir()
    (tmp_path / "storage/mine").symlink_to(tmp_path / "private")
    run = sample_run(run_folder=f"{tmp_path}/storage/mine/sr")
    assert RunFolders().last_checkpoint(run) is None, "a link of this user or the administrator is part of the path"
    if os.getuid() == 0:
        os.lchown(tmp_path / "storage/mine", 4321, -1)
    else:
        monkeypatch.setattr(os, "getuid", lambda: 4321)
    with pytest.raises(StorageError, match="storage/mine is a link that another user has made: not followed"):
        RunFolders().last_checkpoint(run)
    with pytest.raises(StorageError, match="another user"):
        RunFolders().write_driver_log(run, 1, 0, b"text")
    assert list((tmp_path / "private/sr").iterdir()) == []
