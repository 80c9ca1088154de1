"""Checkpoints: complete or absent, retained by score, verified when they are fetched."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.s3 import FaultProxy
from tests.trainers.run_folder.writers import begin, first_group, group_of, staged
from trainers.config.storage_location import StorageOptions
from trainers.errors import DamagedError, FencedError, StorageError
from trainers.run_folder.checkpoints import (
    BASE,
    MANIFEST,
    ORIGINAL,
    RetentionPolicy,
    Uploader,
    fetch,
    fetch_base,
    list_checkpoints,
    newest,
    quarantine,
    read_manifest,
    sweep,
    upload_staged,
)
from trainers.run_folder.journal import Checkpoint, Journal
from trainers.run_folder.layout import CHECKPOINTS, RunFolder
from trainers.run_folder.staging import list_staged, stage
from trainers.storage import RetryPolicy, Storage, open_storage
from trainers.storage.base import PART_SUFFIX
from trainers.storage.local_folder import LocalStorage

KEEP_ONE = RetentionPolicy(1, "eval_wer")


def checkpoint(step: int, wer: float) -> Checkpoint:
    """What is known of a checkpoint, without files."""
    return Checkpoint(f"checkpoint-{step}-a1-x", step, 1, {"eval_wer": wer}, "2026-01-01T00:00:00+00:00", {})


def nothing(checkpoint: Checkpoint, seconds: float) -> None:
    """No further work."""


def test_the_best_is_the_lowest_and_the_newest_of_equals() -> None:
    assert RetentionPolicy(3, "eval_wer").best([checkpoint(1, 9), checkpoint(2, 5), checkpoint(3, 5)]) == checkpoint(
        3, 5
    )
    assert KEEP_ONE.best([]) is None


def test_the_best_by_a_score_that_should_be_large_is_the_highest() -> None:
    items = [checkpoint(1, 9), checkpoint(2, 5), checkpoint(3, 7)]
    largest = RetentionPolicy(1, "eval_wer", "max")
    assert largest.best(items) == items[0]
    assert largest.surplus(items) == [items[1]]


def test_the_best_and_the_newest_stay() -> None:
    items = [checkpoint(1, 5), checkpoint(2, 7), checkpoint(3, 9)]
    assert KEEP_ONE.surplus(items) == [checkpoint(2, 7)]
    assert RetentionPolicy(None, "eval_wer").surplus(items) == []
    assert newest(items) == checkpoint(3, 9)


def test_one_without_a_score_is_never_the_best_and_stays_only_as_the_newest() -> None:
    stopped, scored = replace(checkpoint(2, 0), metrics={}), checkpoint(1, 9)
    assert KEEP_ONE.best([scored, stopped]) == scored
    assert KEEP_ONE.best([stopped]) is None
    assert KEEP_ONE.surplus([scored, stopped]) == []
    assert KEEP_ONE.surplus([scored, stopped, checkpoint(3, 5)]) == [scored, stopped]


def test_where_none_has_a_score_the_newest_stay() -> None:
    items = [replace(checkpoint(step, 0), metrics={}) for step in (1, 2, 3)]
    assert RetentionPolicy(2, "eval_wer").surplus(items) == items[:1]


@pytest.mark.parametrize("score", [math.nan, math.inf, None])
def test_one_whose_score_is_no_finite_number_is_never_the_best(score: Any) -> None:
    diverged, scored = checkpoint(2, score), checkpoint(1, 9)
    assert KEEP_ONE.best([diverged, scored]) == KEEP_ONE.best([scored, diverged]) == scored
    assert KEEP_ONE.best([diverged]) is None


def test_a_folder_that_is_not_declared_whole_is_not_staged(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-5").mkdir()
    assert list_staged([tmp_path]) == []
    path = staged(tmp_path, 7)
    assert [item.step for item in list_staged([tmp_path])] == [7]
    (path / "optimizer.pt").write_bytes(b"cut")
    assert list_staged([tmp_path]) == []


def test_a_checkpoint_comes_home_and_back(tmp_path: Path, storage: Storage) -> None:
    folder = RunFolder(storage)
    path = staged(tmp_path / "staging", 3)
    home = upload_staged(path, first_group(folder), KEEP_ONE)
    assert not path.exists()
    assert list_checkpoints(folder) == [home]
    checkpoints = storage.sub(CHECKPOINTS)
    assert read_manifest(checkpoints, home.name) == home
    fetch(checkpoints, home, tmp_path / "back")
    assert (tmp_path / "back/model.safetensors").read_bytes() == bytes(range(256)) * 3


def test_a_half_uploaded_checkpoint_does_not_exist(tmp_path: Path, s3_bucket: str, fault_proxy: FaultProxy) -> None:
    impatient = RetryPolicy(attempts=2, part_attempts=1, first_delay_s=0.01, max_delay_s=0.02)
    folder = RunFolder(open_storage(f"{s3_bucket}/run", StorageOptions(fault_proxy.url), retry=impatient))
    writer = first_group(folder)
    path = staged(tmp_path, 3)
    fault_proxy.fail_next(99, matches=lambda method, path: "optimizer" in path)
    uploader = Uploader(writer, KEEP_ONE, also=nothing)
    uploader.submit(path)
    with pytest.raises(StorageError, match=r"optimizer\.pt"):
        uploader.wait()
    assert folder.storage.list_files(CHECKPOINTS) != []
    assert list_checkpoints(folder) == []
    assert [item.step for item in list_staged([tmp_path])] == [3], "it waits in staging for the next worker"
    fault_proxy.clear()
    upload_staged(path, writer, KEEP_ONE)
    assert [item.step for item in list_checkpoints(folder)] == [3]


def test_surplus_checkpoints_go_when_a_better_one_is_home(tmp_path: Path, storage: Storage) -> None:
    folder = RunFolder(storage)
    uploader = Uploader(first_group(folder), KEEP_ONE, also=nothing)
    for step, wer in ((1, 9.0), (2, 5.0), (3, 7.0), (4, 6.0)):
        uploader.submit(staged(tmp_path, step, wer))
    uploader.wait()
    assert [item.step for item in list_checkpoints(folder)] == [2, 4]
    assert storage.sub(CHECKPOINTS).list_folders() == ["checkpoint-2-a1-x", "checkpoint-4-a1-x"]


def test_a_stale_group_s_checkpoint_does_not_exist_and_leaves_nothing(tmp_path: Path, storage: Storage) -> None:
    folder = RunFolder(storage)
    stale = first_group(folder)
    upload_staged(staged(tmp_path, 1), stale, KEEP_ONE)
    before = list_checkpoints(folder)
    begin(folder, number=2)
    uploader = Uploader(stale, KEEP_ONE, also=nothing)
    uploader.submit(staged(tmp_path, 2, wer=1.0))
    with pytest.raises(FencedError, match="attempt 2 has taken this run over, so attempt 1 ends here"):
        uploader.wait()
    assert list_checkpoints(folder) == before
    assert storage.sub(CHECKPOINTS).list_folders() == ["checkpoint-1-a1-x"], "and the old one stays"


def test_a_group_that_is_fenced_in_the_middle_of_an_upload_takes_its_files_back(
    tmp_path: Path, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(storage)
    stale = first_group(folder)
    upload = type(storage).upload_file

    def upload_and_pause(self: Storage, local: Path, key: str) -> None:
        upload(self, local, key)
        if key == "model.safetensors":
            group_of(begin(folder, number=2), "y")

    monkeypatch.setattr(type(storage), "upload_file", upload_and_pause)
    with pytest.raises(FencedError):
        upload_staged(staged(tmp_path, 1), stale, KEEP_ONE)
    assert list_checkpoints(folder) == []
    assert storage.list_files(CHECKPOINTS) == []


def test_what_another_group_staged_comes_home_under_a_name_of_its_own(tmp_path: Path, storage: Storage) -> None:
    folder = RunFolder(storage)
    driver = begin(folder)
    group_of(driver, "x")
    home = upload_staged(staged(tmp_path, 5), group_of(driver, "y"), KEEP_ONE)
    assert home.name == "checkpoint-5-a1-x-y"
    assert list_checkpoints(folder) == [home]


def test_what_an_older_version_staged_may_have_a_loss_that_is_not_finite(tmp_path: Path, storage: Storage) -> None:
    driver = begin(RunFolder(storage))
    group_of(driver, "x")
    path = tmp_path / "checkpoint-5-a1-x"
    path.mkdir()
    stage(path, step=5, attempt=1, metrics={"eval_wer": 10.0, "eval_loss": math.inf})
    home = upload_staged(path, group_of(driver, "y"), KEEP_ONE)
    assert home.metrics == {"eval_wer": 10.0, "eval_loss": None}
    assert list_checkpoints(driver.folder) == [home]


def test_weights_beside_a_checkpoint_are_fetched_where_its_model_is_made_of_them(tmp_path: Path) -> None:
    elsewhere, base = open_storage(str(tmp_path / "elsewhere")), json.dumps({"folder": "base-0123456789abcdef"})
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / ORIGINAL).write_text(base)
    fetch_base(elsewhere, tmp_path / "model", trains=False)
    with pytest.raises(DamagedError, match="base-0123456789abcdef: is missing, and the run began with it"):
        fetch_base(elsewhere, tmp_path / "model")
    (tmp_path / "model" / BASE).write_text(base)
    with pytest.raises(DamagedError, match="base-0123456789abcdef: is missing"):
        fetch_base(elsewhere, tmp_path / "model", trains=False)


@pytest.mark.integration
def test_what_killed_groups_left_half_uploaded_is_swept_and_nothing_else(tmp_path: Path, storage: Storage) -> None:
    folder = RunFolder(storage)
    driver, checkpoints = begin(folder), storage.sub(CHECKPOINTS)
    old = group_of(driver, "x")
    upload_staged(staged(tmp_path, 1), old, RetentionPolicy(None, "eval_wer"))
    damaged = upload_staged(staged(tmp_path, 2), old, RetentionPolicy(None, "eval_wer"))
    quarantine(old, damaged.name)
    for name in ("checkpoint-3-a1-x", "checkpoint-3-a1-y", "mine"):
        checkpoints.write_bytes(f"{name}/optimizer.pt", b"half")
    if isinstance(storage, LocalStorage):
        # A kill while the first of its files was written.
        half = Path(checkpoints.url("checkpoint-5-a1-x")) / f".model{PART_SUFFIX}"
        half.parent.mkdir()
        half.write_bytes(b"half")
    sweep(group_of(driver, "y"))
    assert not Path(checkpoints.url(), "checkpoint-5-a1-x").exists()
    assert checkpoints.list_folders() == ["checkpoint-1-a1-x", "checkpoint-2-a1-x", "checkpoint-3-a1-y", "mine"]
    checkpoints.write_bytes("checkpoint-4-a2-z/optimizer.pt", b"half")
    with pytest.raises(FencedError):
        sweep(old)
    assert "checkpoint-4-a2-z" in checkpoints.list_folders(), "a stale group sweeps nothing"


def test_results_that_the_journal_does_not_name_are_swept(storage: Storage) -> None:
    driver = begin(RunFolder(storage))
    old, killed, own = (group_of(driver, name) for name in "xyz")
    for writer in (old, killed, own):
        storage.write_bytes(f"{writer.group.outputs}/model/weights", b"w")
    storage.write_bytes("attempts/1/tensorboard/events", b"e")
    finished = {"kind": "finished", "attempt": 1, "outputs": old.group.outputs, "files": [], "result": {}}
    own.append(lambda state: finished)
    sweep(own)
    assert storage.list_folders("attempts/1") == [old.group.outputs, own.group.outputs, "attempts/1/tensorboard"]


@pytest.mark.integration
def test_a_group_whose_results_a_later_one_has_deleted_says_that_it_was_overtaken(storage: Storage) -> None:
    folder = RunFolder(storage)
    driver = begin(folder)
    paused = group_of(driver, "x")
    scores = f"{paused.group.outputs}/scores"
    storage.write_bytes(scores, b"written before the pause")
    with pytest.raises(StorageError), paused.writing_outputs():
        storage.read_bytes(f"{scores}-that-nobody-wrote")
    sweep(group_of(driver, "y"))
    with pytest.raises(FencedError), paused.writing_outputs():
        storage.write_bytes(f"{paused.group.outputs}/model", b"written after the pause")
        storage.read_bytes(scores)
    assert storage.list_folders("attempts/1") == [], "nobody would delete it later"


def test_damage_is_told_from_trouble(tmp_path: Path, storage: Storage) -> None:
    folder = RunFolder(storage)
    writer = first_group(folder)
    checkpoints = storage.sub(CHECKPOINTS)
    home = upload_staged(staged(tmp_path / "staging", 2), writer, KEEP_ONE)
    checkpoints.write_bytes(f"{home.name}/optimizer.pt", b"STATE")
    with pytest.raises(DamagedError, match="SHA-256"):
        fetch(checkpoints, home, tmp_path / "a")
    checkpoints.delete(f"{home.name}/optimizer.pt")
    with pytest.raises(DamagedError, match="missing"):
        fetch(checkpoints, home, tmp_path / "b")
    quarantine(writer, home.name)
    assert list_checkpoints(folder) == []
    assert checkpoints.exists(f"{home.name}/DAMAGED.json")
    with pytest.raises(DamagedError, match=MANIFEST):
        read_manifest(checkpoints, home.name)


def test_a_manifest_cannot_name_files_outside_its_folder(tmp_path: Path, storage: Storage) -> None:
    home = upload_staged(staged(tmp_path / "staging", 2), first_group(RunFolder(storage)), KEEP_ONE)
    outside = replace(home, files={"../../escaped": home.files["optimizer.pt"]})
    with pytest.raises(DamagedError, match="outside"):
        fetch(storage.sub(CHECKPOINTS), outside, tmp_path / "deep/back")
    assert not (tmp_path / "escaped").exists()


def test_one_entry_adds_a_checkpoint_and_drops_the_surplus(tmp_path: Path, storage: Storage) -> None:
    folder = RunFolder(storage)
    writer = first_group(folder)
    for step, wer in ((1, 9.0), (2, 5.0), (3, 7.0)):
        before = Journal(folder).read().number
        upload_staged(staged(tmp_path, step, wer), writer, KEEP_ONE)
        assert Journal(folder).read().number == before + 1


def test_what_is_changed_on_the_way_here_is_downloaded_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(LocalStorage(str(tmp_path / "run"), RetryPolicy(attempts=1)))
    checkpoint = upload_staged(staged(tmp_path, 3), first_group(folder), KEEP_ONE)
    download, downloads = LocalStorage.download_file, []

    def change_first(self: LocalStorage, key: str, local: Path) -> None:
        download(self, key, local)
        downloads.append(key)
        if len(downloads) == 1:
            local.write_bytes(b"changed")

    monkeypatch.setattr(LocalStorage, "download_file", change_first)
    fetch(folder.storage.sub(CHECKPOINTS), checkpoint, tmp_path / "here")
    assert (tmp_path / "here/optimizer.pt").read_bytes() == b"state"
    assert len(downloads) == len(checkpoint.files) + 1
