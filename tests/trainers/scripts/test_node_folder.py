"""Folders of keepers on a node: what no living one holds goes, and files from elsewhere name those of this one."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.trainers.run_folder.writers import first_group
from trainers.config.schema import ScriptConfig
from trainers.errors import StorageError
from trainers.run_folder.layout import RunFolder
from trainers.scripts.backend import GroupMember, RankContext
from trainers.scripts.node_folder import INPUTS, UNPACKED, NodeFolder, ScriptTask
from trainers.storage import open_storage
from trainers.storage.own_folder import own_temporary_folder

KILLED = """
import os, sys
from pathlib import Path
from trainers.scripts.node_folder import NodeFolder
own = Path(sys.argv[1])
made = NodeFolder(own, own / "package", Path(sys.argv[2]), None).made()
made.__enter__()
os._exit(9)
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "package").mkdir()
    (tmp_path / "package/train.py").touch()
    return tmp_path / "package"


def folder_of(name: str, package: Path) -> NodeFolder:
    own = own_temporary_folder("scripts") / name
    return NodeFolder(own, own / "package", package, None)


@pytest.mark.integration
def test_folders_of_keepers_that_were_killed_go_and_those_of_others_stay(package: Path) -> None:
    killed, living, new = (folder_of(name, package) for name in ("killed", "living", "new"))
    assert subprocess.run([sys.executable, "-c", KILLED, killed.own, package], check=False).returncode == 9
    assert (killed.work / "train.py").is_file()
    killed.own.with_name("killed-earlier.held").touch()
    with living.made():
        assert not killed.own.exists()
        with new.made():
            assert (living.work / "train.py").is_file() and (new.work / "train.py").is_file()
    assert [path.name for path in killed.own.parent.iterdir()] == [".scripts.lock"]


@pytest.mark.parametrize(
    ("working_dir", "problem"),
    [
        ("sub", r"^script\.working_dir: .*gone is not a folder on this node"),
        (None, "^[^:]*gone is not on this node\\. .*--submit"),
    ],
)
def test_a_folder_that_is_not_there_is_named_by_who_has_named_it(
    package: Path, working_dir: str | None, problem: str
) -> None:
    own = own_temporary_folder("scripts") / "own"
    with pytest.raises(StorageError, match=problem), NodeFolder(own, package / "gone", None, working_dir).made():
        pass
    assert not own.exists()


def node_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, group: str) -> NodeFolder:
    """The folders of a group on a node, whose temporary folder is its own."""
    temporary = tmp_path / f"tmp-{number}"
    temporary.mkdir(exist_ok=True)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    folder = RunFolder(open_storage(str(tmp_path / "run")))
    if number == 0:
        first_group(folder)
    config = ScriptConfig.model_validate({"trainer": "script", "script": {"command": ["train.py"]}})
    context = RankContext(number, 2, 0, 1, number, 2, "127.0.0.1", 29500)
    member = GroupMember(group, context, ("3f9c2e7b51aa00", "77e1c0de92bb00"))
    package = tmp_path / UNPACKED / "package"
    return NodeFolder.of(ScriptTask(config, 1, None, "p"), folder, member, {"PYTHONPATH": str(package)})


def test_paths_of_another_node_become_those_of_this_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = node_folder(tmp_path, monkeypatch, 0, "0123abcd")
    inputs_there = own_temporary_folder(INPUTS)
    here = node_folder(tmp_path, monkeypatch, 1, "89efcdab")
    inputs_here = own_temporary_folder(INPUTS)
    assert there.own != here.own and inputs_there != inputs_here

    def text(own: Path, inputs: Path) -> str:
        return f'ID,wav\n1,{own}/package/clips/1.wav\n2,"{inputs}/0f/clips/2.wav"\n3,/corpus/3.wav\nwav:{own}/data\n'

    for name in ("train.csv", "weights.ckpt"):
        (tmp_path / name).write_text(text(there.own, inputs_there))
        here.localize(tmp_path / name)
    assert (tmp_path / "train.csv").read_text() == text(here.own, inputs_here)
    assert (tmp_path / "weights.ckpt").read_text() == text(there.own, inputs_there)
