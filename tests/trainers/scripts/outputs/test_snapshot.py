"""A snapshot has what a checkpoint was, whatever the program does to it meanwhile."""

from pathlib import Path

import pytest

from tests.trainers.scripts.outputs.programs import write_trainer_checkpoint
from trainers.errors import StorageError
from trainers.scripts.outputs.layouts import remove_checkpoint, signature_of
from trainers.scripts.outputs.snapshot import ChangedError, Snapshot, snapshots_of


def test_what_the_program_deletes_stays_until_the_snapshot_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    path = write_trainer_checkpoint(folder, 3)
    model = (path / "model.safetensors").read_bytes()
    snapshot = Snapshot(folder, "checkpoint-3", signature_of(path))
    remove_checkpoint(path)
    snapshot.check()
    assert (snapshot.root / "checkpoint-3/model.safetensors").read_bytes() == model
    assert "checkpoint-3/model.safetensors" in snapshot.files
    assert list(folder.iterdir()) == []
    snapshot.close()
    assert list(tmp_path.iterdir()) == [folder]


@pytest.mark.parametrize("has_links", [True, False])
def test_a_file_that_is_written_again_in_place_is_noticed_or_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_links: bool
) -> None:
    def refuse(target: Path, source: Path) -> None:
        raise PermissionError(1, "Operation not permitted")

    if not has_links:
        monkeypatch.setattr(Path, "hardlink_to", refuse)
    file = tmp_path / "out/last.pt"
    file.parent.mkdir()
    file.write_bytes(b"first")
    snapshot = Snapshot(file.parent, "last.pt", signature_of(file))
    file.write_bytes(b"second")
    if has_links:
        with pytest.raises(ChangedError):
            snapshot.check()
    else:
        snapshot.check()
        assert (snapshot.root / "last.pt").read_bytes() == b"first"


def test_none_is_taken_of_what_has_changed(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    path = write_trainer_checkpoint(folder, 3)
    signature = signature_of(path)
    (path / "optimizer.pt").write_bytes(b"longer than before")
    with pytest.raises(ChangedError):
        Snapshot(folder, "checkpoint-3", signature)
    (path / "optimizer.pt").unlink()
    with pytest.raises(ChangedError):
        Snapshot(folder, "checkpoint-3", signature)
    assert not snapshots_of(folder).exists()


def test_links_are_followed(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    path = write_trainer_checkpoint(folder, 3)
    (tmp_path / "shared.bin").write_bytes(b"weights")
    (path / "weights.bin").symlink_to(tmp_path / "shared.bin")
    snapshot = Snapshot(folder, "checkpoint-3", signature_of(path))
    (path / "weights.bin").unlink()
    assert (snapshot.root / "checkpoint-3/weights.bin").read_bytes() == b"weights"


def test_a_disk_that_refuses_both_links_and_copies_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*paths: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    monkeypatch.setattr("shutil.copy2", refuse)
    path = write_trainer_checkpoint(tmp_path / "out", 3)
    with pytest.raises(StorageError, match="No space left on device"):
        Snapshot(path.parent, "checkpoint-3", signature_of(path))


def test_where_nobody_may_write_next_to_the_folder_a_snapshot_is_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    path = write_trainer_checkpoint(tmp_path / "top/out", 3)
    snapshot = Snapshot(path.parent, "checkpoint-3", signature_of(path))
    assert not snapshot.root.is_relative_to(tmp_path / "top")
    snapshot.check()
