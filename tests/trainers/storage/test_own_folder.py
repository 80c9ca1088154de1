"""Folders of temporary files whose names others of the machine can guess, and make first."""

import os
import tempfile
from pathlib import Path

import pytest

from trainers.data.node_cache import NodeCache
from trainers.errors import StorageError
from trainers.storage.own_folder import own_temporary_folder


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_folder_is_for_its_user_alone(temporary: Path) -> None:
    made = own_temporary_folder("shards")
    assert made == temporary / f"rayscribe-shards-{os.getuid()}" and made.stat().st_mode & 0o777 == 0o700
    # As an earlier version left it.
    made.chmod(0o755)
    (made / "file").touch()
    assert own_temporary_folder("shards") == made and made.stat().st_mode & 0o777 == 0o700
    assert (made / "file").exists()


def test_what_another_user_has_made_first_is_not_used(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = temporary / "elsewhere"
    elsewhere.mkdir()
    (temporary / f"rayscribe-logs-{os.getuid()}").symlink_to(elsewhere)
    (temporary / f"rayscribe-demo-{os.getuid()}").touch()
    for purpose in ("logs", "demo"):
        with pytest.raises(StorageError, match=rf"rayscribe-{purpose}-\d+ .*TMPDIR"):
            own_temporary_folder(purpose)
    (temporary / f"rayscribe-shards-{os.getuid() + 1}").mkdir()
    their_id = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: their_id + 1)
    with pytest.raises(StorageError, match=rf"was made by another user \(user id {their_id}\)"):
        NodeCache("/prepared", "key").once("shard", Path.touch)
