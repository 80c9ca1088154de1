"""A checkpoint that several nodes write is entered when all of them have stored their parts, or not at all."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tests.trainers.run_folder.writers import first_group
from tests.trainers.scripts.outputs.programs import (
    DictBoard,
    node_output,
    save_archive,
    trainer_state,
    write_trainer_checkpoint,
)
from trainers.errors import StorageError
from trainers.run_folder.checkpoints import RetentionPolicy, list_checkpoints
from trainers.run_folder.layout import RunFolder
from trainers.scripts.outputs.checkpoint_keeper import CheckpointKeeper
from trainers.scripts.outputs.layouts import MARKED_STABLE_S, Watch, files_of, layouts_for
from trainers.scripts.outputs.parts import END, PartCollector, PartServer
from trainers.scripts.outputs.restore import restore
from trainers.storage import open_storage

KNOWN = layouts_for("auto")


class Nodes:
    """The keepers of three nodes that share nothing but a board and a run folder."""

    def __init__(self, tmp_path: Path, *, timeout_s: float = 60.0):
        self.run = RunFolder(open_storage(str(tmp_path / "run")))
        self.folders = [tmp_path / f"node-{number}" / "out" for number in range(3)]
        self.board, self.now_s = DictBoard(), 0.0
        self.writer = first_group(self.run)
        outputs = [
            node_output(folder, self.run, self.board, node=number, others=(1, 2), clock=lambda: self.now_s)
            for number, folder in enumerate(self.folders)
        ]
        self.collector = PartCollector(outputs[0], timeout_s=timeout_s)
        main = replace(outputs[0], watch=Watch())
        self.keeper = CheckpointKeeper(main, self.writer, RetentionPolicy(None, "eval_wer"), self.collector)
        self.servers = [PartServer(output) for output in outputs[1:]]

    def end_main(self) -> None:
        self.keeper.keep_new(ended_well=True)


def rng_state(folder: Path, rank: int) -> None:
    """What a rank that is not the first of all writes into the checkpoint of step 3."""
    path = folder / "checkpoint-3"
    path.mkdir(parents=True, exist_ok=True)
    save_archive(path / f"rng_state_{rank}.pth", bytes([rank]))


def test_all_nodes_get_all_that_any_has_written(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path)
    write_trainer_checkpoint(nodes.folders[0], 3)
    for folder in nodes.folders[1:]:
        rng_state(folder, 2)
        # Of a program that writes some files on each node.
        (folder / "checkpoint-3/trainer_state.json").write_text(json.dumps(trainer_state(3)))
    rng_state(nodes.folders[2], 4)
    (nodes.folders[2] / "checkpoint-3/rng_state_2.pth").write_bytes(b"another one of this name")
    with ThreadPoolExecutor() as pool:
        main = pool.submit(nodes.end_main)
        while not main.done():
            # The last node waits for what the one before it has.
            for server in reversed(nodes.servers):
                server.serve(ended_well=False)
        main.result()
    (entered,) = list_checkpoints(nodes.run)
    stored = restore(nodes.run, nodes.writer.check(), tmp_path / "back", KNOWN)
    assert stored is not None
    back = {path.name: path.read_bytes() for path in files_of(tmp_path / "back/checkpoint-3")}
    assert back.keys() == {
        *("model.safetensors", "optimizer.pt", "trainer_state.json"),
        *("rng_state_0.pth", "rng_state_2.pth", "rng_state_4.pth"),
    }
    for node, name in ((0, "trainer_state.json"), (1, "rng_state_2.pth"), (2, "rng_state_4.pth")):
        assert back[name] == (nodes.folders[node] / "checkpoint-3" / name).read_bytes()
    assert len(entered.files) == 6


def test_a_part_is_stored_once_it_does_not_change_and_may_be_nothing(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, timeout_s=0.0)
    write_trainer_checkpoint(nodes.folders[0], 3)
    first, second = nodes.servers
    with pytest.raises(StorageError, match="node 1 has not stored its part"):
        nodes.end_main()
    first.serve()
    second.serve()
    nodes.now_s = MARKED_STABLE_S
    rng_state(nodes.folders[2], 4)
    first.serve()
    second.serve()
    with pytest.raises(StorageError, match="node 2 has not stored its part"):
        nodes.end_main()
    assert list_checkpoints(nodes.run) == []
    nodes.now_s = 2 * MARKED_STABLE_S
    second.serve()
    nodes.end_main()
    (entered,) = list_checkpoints(nodes.run)
    assert "checkpoint-3/rng_state_4.pth" in entered.files


def test_a_node_whose_storage_fails_stores_its_part_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = Nodes(tmp_path, timeout_s=0.0)
    write_trainer_checkpoint(nodes.folders[0], 3)
    rng_state(nodes.folders[1], 2)
    with pytest.raises(StorageError, match="node 1"):
        nodes.end_main()

    def refuse(*arguments: object) -> None:
        raise StorageError("away")

    with monkeypatch.context() as patch:
        patch.setattr(type(nodes.run.storage), "upload_file", refuse)
        with pytest.raises(StorageError, match="away"):
            nodes.servers[0].serve(ended_well=False)
    for server in nodes.servers:
        server.serve(ended_well=False)
    nodes.end_main()
    assert [item.step for item in list_checkpoints(nodes.run)] == [3]


def test_the_main_node_says_when_nothing_more_is_wanted(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path)
    assert not nodes.servers[0].is_done()
    nodes.collector.end()
    assert nodes.servers[0].is_done()
    alone = DictBoard()
    PartCollector(node_output(nodes.folders[0], nodes.run, alone)).end()
    assert alone.posted(END) is None


@pytest.mark.parametrize("ended_well", [True, False])
def test_what_a_killed_rank_has_left_half_written_is_in_no_checkpoint(tmp_path: Path, ended_well: bool) -> None:
    nodes = Nodes(tmp_path, timeout_s=0.0)
    write_trainer_checkpoint(nodes.folders[0], 3)
    rng_state(nodes.folders[1], 2)
    (nodes.folders[1] / "checkpoint-3/shard.bin").write_bytes(bytes(8192))
    with pytest.raises(StorageError, match="node 1"):
        nodes.end_main()
    for server in nodes.servers:
        server.serve(ended_well=ended_well)
    nodes.end_main()
    assert [item.step for item in list_checkpoints(nodes.run)] == ([3] if ended_well else [])


def test_a_copy_of_what_the_main_node_has_is_never_incomplete(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, timeout_s=0.0)
    for folder in nodes.folders:
        # Nothing in such a file shows its end.
        (write_trainer_checkpoint(folder, 3) / "tokens.txt").write_bytes(bytes(8192))
    with pytest.raises(StorageError, match="node 1"):
        nodes.end_main()
    for server in nodes.servers:
        server.serve(ended_well=False)
    nodes.end_main()
    assert [item.step for item in list_checkpoints(nodes.run)] == [3]
