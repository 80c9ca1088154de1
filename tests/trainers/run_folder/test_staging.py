"""Staging folders of nodes that share a temporary folder."""

import fcntl
import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.trainers.run_folder.writers import staged
from trainers.distributed.session import LocalSession
from trainers.errors import ResumeError, StorageError
from trainers.run_folder import staging as staging_module
from trainers.run_folder.staging import STAGED, Staging, list_staged

ROOT = Path(__file__).parents[3]
OPEN_AS_A_NODE = """
from trainers.distributed.session import LocalSession
from trainers.run_folder.staging import Staging
session = LocalSession.of_this_process()
staging = Staging.open("run", session)
print(staging.folder)
session.barrier("the end")
staging.remove()
"""


@dataclass(frozen=True)
class OfNode(LocalSession):
    """The first rank of a node that has a name."""

    name: str = ""

    @property
    def node(self) -> str:
        return self.name


@pytest.fixture(autouse=True)
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A temporary folder that all nodes have."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def test_nodes_that_share_a_temporary_folder_have_folders_of_their_own() -> None:
    one, two = (Staging.open("run", OfNode(0, 1, 0, name), "group") for name in ("a", "b"))
    assert one.folder != two.folder
    assert one.folder.is_dir() and two.folder.is_dir()
    assert one.wait_for_earlier_groups(managed_by_service=False, log=print) == [], (
        "the same group on another node is not an earlier one"
    )
    one.remove()
    assert two.folder.is_dir()


@pytest.mark.integration
def test_two_nodes_of_one_temporary_folder_get_through(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    known = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
    nodes = [
        subprocess.Popen(
            [sys.executable, "-c", OPEN_AS_A_NODE],
            cwd=ROOT,
            env={**os.environ, **known, "RANK": str(node), "GROUP_RANK": str(node), "TMPDIR": str(tmp_path)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for node in range(2)
    ]
    try:
        folders = [node.communicate(timeout=120)[0].strip() for node in nodes]
    finally:
        for node in nodes:
            node.kill()
    assert [node.returncode for node in nodes] == [0, 0]
    assert folders[0] and folders[1] and folders[0] != folders[1]
    assert not list(tmp_path.glob("rayscribe-staging-*/*")), "nothing is left"


def test_what_a_killed_group_left_on_another_node_of_the_folder_is_found(tmp_path: Path) -> None:
    killed = Staging.open("run", OfNode(0, 1, 0, "a"), "first")
    killed.release()
    later = Staging.open("run", OfNode(0, 1, 0, "b"), "second")
    assert later.wait_for_earlier_groups(managed_by_service=False, log=print) == [killed.folder]


def test_a_lock_that_another_process_holds_is_no_endless_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging_module, "LOCK_TIMEOUT_S", 0.0)
    first = Staging.open("run", OfNode(0, 1, 0, "a"), "group")
    with pytest.raises(ResumeError, match=r"held by another process of the same worker group; give each node a temp"):
        Staging.open("run", OfNode(0, 1, 0, "a"), "group")
    assert first.folder.is_dir()


def test_a_temporary_folder_without_locks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(StorageError, match=r"cannot be locked: Function not implemented; give each node a temporary"):
        Staging.open("run", OfNode(0, 1, 0, "a"), "group")


@pytest.mark.parametrize("content", ["", '{"name": "checkpoint-1', "null", "{}"])
def test_a_marker_that_a_lost_node_left_empty_or_cut_is_no_checkpoint(content: str, tmp_path: Path) -> None:
    (staged(tmp_path, 1) / STAGED).write_text(content)
    staged(tmp_path, 2)
    assert [item.step for item in list_staged([tmp_path])] == [2]
