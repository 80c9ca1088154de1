"""What the main process has written before a barrier, the ranks of other nodes find after it."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.jobs.ledger.builders import wait_until
from tests.trainers.scripts.outputs.programs import DictBoard, node_output
from trainers.errors import StorageError
from trainers.run_folder.layout import RunFolder
from trainers.scripts.outputs import shared_files
from trainers.scripts.outputs.layouts import layouts_for
from trainers.scripts.outputs.output_files import OutputFiles
from trainers.scripts.outputs.shared_files import FileReceiver, FileSharer, program_variables
from trainers.storage import Storage, open_storage

KEY = "attempts/1/outputs-x/shared"
# Writes what recipes do before and while they train, and reads it where a rank of the other node would.
PROGRAM = """
import pathlib, sys
import torch.distributed as dist

out, other = map(pathlib.Path, sys.argv[1:3])
dist.init_process_group("gloo", init_method=f"file://{out.parent}/store", rank=0, world_size=1)
dist.barrier()
(out / "save").mkdir(parents=True)
(out / "save/label_encoder.txt").write_text(f"of {out}")
(out / "encoder.ckpt").write_bytes(b"weights")
(out / "save/encoder.ckpt").symlink_to(out / "encoder.ckpt")
dist.barrier()
print((other / "save/label_encoder.txt").read_text(), (other / "save/encoder.ckpt").read_bytes().decode())
(out / "save/CKPT+1").mkdir()
(out / "save/CKPT+1/CKPT.yaml").write_text("epoch: 1")
(out / "train_log.txt").write_text("epoch: 1")
dist.barrier()
(out / "save/CKPT+1").rename(out / "save/CKPT+2")
(out / "save/CKPT+2/model.ckpt").write_bytes(b"m")
dist.broadcast_object_list(["save/CKPT+2"])
print(*sorted(path.relative_to(other).as_posix() for path in other.rglob("*") if path.is_file()))
"""


class Nodes:
    """The main node and another one, whose output folders are on disks of their own."""

    def __init__(self, tmp_path: Path, storage: Storage):
        self.folders = [tmp_path / f"node-{number}" / "out" for number in range(2)]
        self.requests, self.said = tmp_path / "requests", list[str]()
        self.stopping, board = threading.Event(), DictBoard()
        outputs = [
            node_output(folder, RunFolder(storage), board, node=number, others=(1,))
            for number, folder in enumerate(self.folders)
        ]
        files = [OutputFiles(folder, layouts_for("auto")) for folder in self.folders]
        self.sharer = FileSharer(outputs[0], KEY, self.requests, self.stopping)
        self.receiver = FileReceiver(outputs[1], files[1], self.localize)
        self.files, self.storage = files, storage

    def localize(self, file: Path) -> None:
        file.write_bytes(file.read_bytes().replace(b"node-0", b"node-1"))

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Both serve until the end of the block."""
        threads = [threading.Thread(target=self._serve, args=(each.serve,)) for each in (self.sharer, self.receiver)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self.stopping.set()
            for thread in threads:
                thread.join()

    def _serve(self, serve: Callable[[], None]) -> None:
        while not self.stopping.wait(0.01):
            try:
                serve()
            except StorageError as error:
                self.said.append(str(error))

    def run(self, tmp_path: Path) -> list[str]:
        """The lines that the program prints."""
        next_path = tmp_path / "next"
        next_path.mkdir()
        (next_path / "sitecustomize.py").write_text("print('the next one runs, too')")
        variables = program_variables(self.folders[0], self.requests, {"PYTHONPATH": str(next_path)})
        self.folders[0].parent.mkdir(parents=True)
        words = [sys.executable, "-c", PROGRAM, *map(str, self.folders)]
        with self.serving():
            done = subprocess.run(
                words, env={**os.environ, **variables}, capture_output=True, text=True, timeout=120, check=False
            )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_files, "POLL_S", 0.01)


@pytest.fixture
def nodes(tmp_path: Path) -> Nodes:
    return Nodes(tmp_path, open_storage(str(tmp_path / "run")))


def ask(nodes: Nodes, number: int = 1) -> None:
    """What the program does before a barrier."""
    nodes.requests.mkdir(exist_ok=True)
    (nodes.requests / f"asked-{number}").touch()


@pytest.mark.integration
def test_a_program_s_new_files_are_on_the_other_node_when_it_leaves_the_barrier(nodes: Nodes, tmp_path: Path) -> None:
    assert nodes.run(tmp_path) == [
        "the next one runs, too",
        f"of {nodes.folders[1]} weights",
        "encoder.ckpt save/CKPT+2/CKPT.yaml save/CKPT+2/model.ckpt save/encoder.ckpt save/label_encoder.txt "
        "train_log.txt",
    ]
    assert nodes.said == []
    # They are no outputs of the other node, and need no longer be stored.
    nodes.files[1].send_all(nodes.storage.sub("outputs"))
    assert nodes.storage.list_files() == []


def test_a_program_that_shares_nothing_has_torch_s_own_barriers(tmp_path: Path) -> None:
    environment = {"PYTHONPATH": "", "RAYSCRIBE_SHARE_FILES": "0"}
    assert program_variables(tmp_path / "out", tmp_path / "requests", environment) == {}
    assert not (tmp_path / "requests").exists()


def test_what_is_there_already_is_not_sent(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in nodes.folders:
        folder.mkdir(parents=True)
        (folder / "weights.bin").write_bytes(b"each rank has fetched them")

    def refuse(*arguments: object) -> None:
        raise AssertionError("nothing lacks")

    monkeypatch.setattr(type(nodes.storage), "upload_file", refuse)
    ask(nodes)
    thread = threading.Thread(target=nodes.sharer.serve)
    thread.start()
    while thread.is_alive():
        nodes.receiver.serve()
    assert (nodes.requests / "shared-1").exists()


def test_the_program_goes_on_where_files_cannot_be_stored_and_later_ones_bring_them(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes.folders[0].mkdir(parents=True)

    def refuse(*arguments: object) -> None:
        raise StorageError("away")

    with nodes.serving():
        with monkeypatch.context() as patch:
            patch.setattr(type(nodes.storage), "upload_file", refuse)
            (nodes.folders[0] / "first.txt").write_text("1")
            ask(nodes)
            wait_until((nodes.requests / "shared-1").exists, "the answer")
        (nodes.folders[0] / "second.txt").write_text("2")
        ask(nodes, 2)
        wait_until((nodes.requests / "shared-2").exists, "the next answer")
        assert {path.name: path.read_text() for path in nodes.folders[1].iterdir()} == {
            "first.txt": "1",
            "second.txt": "2",
        }
    assert nodes.said == ["away"]


def test_a_node_that_has_ended_does_not_keep_the_main_node(nodes: Nodes) -> None:
    nodes.folders[0].mkdir(parents=True)
    (nodes.folders[0] / "new.txt").write_text("1")
    ask(nodes)
    nodes.stopping.set()
    with pytest.raises(StorageError, match="node 1 may lack files"):
        nodes.sharer.serve()
    assert (nodes.requests / "shared-1").exists()
