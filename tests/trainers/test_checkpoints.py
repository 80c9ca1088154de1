"""Checkpoints: whole or absent, kept by score, checked when they come back."""

from pathlib import Path

import pytest

from tests.s3 import FaultProxy
from trainers.checkpoints import (
    MANIFEST,
    Checkpoint,
    Keeping,
    Uploader,
    bring_home,
    fetch,
    list_checkpoints,
    list_staged,
    newest,
    set_aside,
    stage,
)
from trainers.errors import DamagedError, StorageError
from trainers.storage import RetryPolicy, Storage, open_storage

KEEP_ONE = Keeping(1, "eval_wer")


def checkpoint(step: int, wer: float) -> Checkpoint:
    """What is known of a checkpoint, without files."""
    return Checkpoint(f"checkpoint-{step}-a1-x", step, 1, {"eval_wer": wer}, "2026-01-01T00:00:00+00:00", {})


def staged(folder: Path, step: int, wer: float = 10.0) -> Path:
    """A whole staged checkpoint."""
    path = folder / f"checkpoint-{step}-a1-x"
    path.mkdir(parents=True)
    (path / "model.safetensors").write_bytes(bytes(range(256)) * step)
    (path / "optimizer.pt").write_bytes(b"state")
    stage(path, step=step, attempt=1, metrics={"eval_wer": wer})
    return path


def nothing() -> None:
    """No further work."""


def test_the_best_is_the_lowest_and_the_newest_of_equals() -> None:
    assert Keeping(3, "eval_wer").best([checkpoint(1, 9), checkpoint(2, 5), checkpoint(3, 5)]) == checkpoint(3, 5)
    assert KEEP_ONE.best([]) is None


def test_the_best_and_the_newest_stay() -> None:
    items = [checkpoint(1, 5), checkpoint(2, 7), checkpoint(3, 9)]
    assert KEEP_ONE.surplus(items) == [checkpoint(2, 7)]
    assert Keeping(None, "eval_wer").surplus(items) == []
    assert newest(items) == "checkpoint-3-a1-x"


def test_a_folder_that_is_not_declared_whole_is_not_staged(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-5").mkdir()
    assert list_staged(tmp_path) == []
    path = staged(tmp_path, 7)
    assert [item.step for item in list_staged(tmp_path)] == [7]
    (path / "optimizer.pt").write_bytes(b"cut")
    assert list_staged(tmp_path) == []


def test_a_checkpoint_comes_home_and_back(tmp_path: Path, storage: Storage) -> None:
    path = staged(tmp_path / "staging", 3)
    home = bring_home(path, storage)
    assert not path.exists()
    assert list_checkpoints(storage) == [home]
    assert fetch(storage, home.name, tmp_path / "back") == home
    assert (tmp_path / "back/model.safetensors").read_bytes() == bytes(range(256)) * 3


def test_a_half_uploaded_checkpoint_does_not_exist(tmp_path: Path, s3_bucket: str, fault_proxy: FaultProxy) -> None:
    impatient = RetryPolicy(attempts=2, part_attempts=1, first_delay_s=0.01, max_delay_s=0.02)
    storage = open_storage(f"{s3_bucket}/checkpoints", s3_endpoint_url=fault_proxy.url, retry=impatient)
    path = staged(tmp_path, 3)
    fault_proxy.fail_next(99, matches=lambda method, path: "optimizer" in path)
    uploader = Uploader(storage, KEEP_ONE, also=nothing)
    uploader.submit(path)
    with pytest.raises(StorageError, match=r"optimizer\.pt"):
        uploader.wait()
    assert storage.list_files() != []
    assert list_checkpoints(storage) == []
    assert [item.step for item in list_staged(tmp_path)] == [3], "it waits in staging for the next worker"
    fault_proxy.clear()
    bring_home(path, storage)
    assert [item.step for item in list_checkpoints(storage)] == [3]


def test_surplus_checkpoints_go_when_a_better_one_is_home(tmp_path: Path, storage: Storage) -> None:
    uploader = Uploader(storage, KEEP_ONE, also=nothing)
    for step, wer in ((1, 9.0), (2, 5.0), (3, 7.0), (4, 6.0)):
        uploader.submit(staged(tmp_path, step, wer))
    uploader.wait()
    assert [item.step for item in list_checkpoints(storage)] == [2, 4]


def test_damage_is_told_from_trouble(tmp_path: Path, storage: Storage) -> None:
    home = bring_home(staged(tmp_path / "staging", 2), storage)
    storage.write_bytes(f"{home.name}/optimizer.pt", b"STATE")
    with pytest.raises(DamagedError, match="SHA-256"):
        fetch(storage, home.name, tmp_path / "a")
    storage.delete(f"{home.name}/optimizer.pt")
    with pytest.raises(DamagedError, match="missing"):
        fetch(storage, home.name, tmp_path / "b")
    set_aside(storage, home.name)
    assert list_checkpoints(storage) == []
    with pytest.raises(DamagedError, match=MANIFEST):
        fetch(storage, home.name, tmp_path / "c")


def test_a_manifest_cannot_name_files_outside_its_folder(tmp_path: Path, storage: Storage) -> None:
    home = bring_home(staged(tmp_path / "staging", 2), storage)
    text = storage.read_bytes(f"{home.name}/{MANIFEST}").decode().replace("optimizer.pt", "../../escaped")
    storage.write_bytes(f"{home.name}/{MANIFEST}", text.encode())
    with pytest.raises(DamagedError, match="outside"):
        fetch(storage, home.name, tmp_path / "deep/back")
    assert not (tmp_path / "escaped").exists()
