import threading
from pathlib import Path
from typing import Any

import pytest

from jobs.service import run_folders
from jobs.service.run_folders import PAUSE_S, RunFolders
from tests.jobs.sample import sample_run
from trainers.run_folder.attempt_status import read_status, status_key
from trainers.run_folder.layout import RunFolder

STEP_7 = '{"phase": "TRAINING", "step": 7, "max_steps": 9}'


def test_a_storage_that_hangs_is_left_alone_for_a_while_and_then_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [0.0]
    folders = RunFolders(timeout_s=0.2, clock=lambda: now_s[0])
    run, beside = (sample_run(run_folder=f"{tmp_path}/{name}") for name in ("sr", "beside"))
    other = sample_run(run_folder=f"{tmp_path}/elsewhere/sr")
    for folder in (run.run_folder, beside.run_folder, other.run_folder):
        path = Path(folder, status_key(1))
        path.parent.mkdir(parents=True)
        path.write_text(STEP_7)
    fixed = threading.Event()

    def reads(folder: RunFolder, attempt: int) -> dict[str, Any] | None:
        if folder.url == run.run_folder:
            fixed.wait()
        return read_status(folder, attempt)

    monkeypatch.setattr(run_folders, "read_status", reads)
    assert folders.progress(run, 1) is None
    assert folders.progress(beside, 1) is None, "it lies on the same storage"
    assert (progress := folders.progress(other, 1)) is not None and progress.step == 7
    assert folders.resume_text(run).startswith(
        "auto: decided on the cluster, since the service cannot read the run folder"
    )
    fixed.set()
    assert folders.progress(run, 1) is None
    now_s[0] += PAUSE_S
    assert folders.progress(run, 1) is not None
    assert folders.progress(beside, 1) is not None


def test_no_checkpoint_is_told_from_a_folder_that_cannot_be_read(tmp_path: Path) -> None:
    folders = RunFolders()
    assert folders.resume_text(sample_run(run_folder=f"{tmp_path}/sr")) == (
        f"auto: no checkpoint is in {tmp_path}/sr, so it starts from scratch"
    )
    assert folders.left_text(sample_run(run_folder=f"{tmp_path}/sr")) == "no checkpoint was made"
    elsewhere = sample_run(run_folder="gs://bucket/runs/sr")
    assert "the service cannot read the run folder: " in folders.resume_text(elsewhere)
    assert folders.left_text(elsewhere).startswith(
        "the service cannot read gs://bucket/runs/sr, so what it left is not known: "
    )
