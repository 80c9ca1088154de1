"""What a program writes gets to the run folder, while it runs and after it; faults of the storage do not stop it."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from tests.jobs.ledger.builders import wait_until
from tests.trainers.run_folder.writers import begin, first_group, group_of
from tests.trainers.scripts.outputs.programs import (
    DictBoard,
    begin_trainer_checkpoint,
    node_output,
    save_archive,
    write_brain_checkpoint,
    write_trainer_checkpoint,
)
from trainers.errors import FencedError, StorageError
from trainers.run_folder import checkpoints
from trainers.run_folder.checkpoints import RetentionPolicy, list_checkpoints
from trainers.run_folder.fencing import GroupWriter
from trainers.run_folder.layout import RunFolder
from trainers.scripts.node_folder import NodeFolder
from trainers.scripts.outputs import checkpoint_keeper, layouts, parts, sync
from trainers.scripts.outputs.output_files import SMALL_BYTES
from trainers.scripts.outputs.progress import ScriptProgress
from trainers.scripts.outputs.sync import OutputSync
from trainers.storage import open_storage


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits that are shorter than those for programs, which take seconds to write a checkpoint."""
    for module, name, seconds in (
        (layouts, "MARKED_STABLE_S", 0.1),
        (layouts, "UNMARKED_STABLE_S", 0.1),
        (parts, "MARKED_STABLE_S", 0.1),
        (checkpoints, "POLL_S", 0.01),
        (sync, "POLL_S", 0.02),
        (sync, "SMALL_FILES_S", 0.1),
        (sync, "END_PAUSE_S", 0.01),
        (checkpoint_keeper, "RETRY_S", 0.05),
    ):
        monkeypatch.setattr(module, name, seconds)


class Node:
    """A node of a worker group, on which a program writes into `out`."""

    def __init__(self, run: RunFolder, folder: Path, board: DictBoard, number: int = 0, count: int = 1):
        self.out, self.said, self.progress = folder / "out", list[str](), list[ScriptProgress]()
        writer = GroupWriter.of(run, 1, "x") if number == 0 else None
        others, retention = tuple(range(1, count)), RetentionPolicy(None, "eval_wer")
        self.lost = set[int]()
        output = node_output(
            self.out, run, board, node=number, others=others, say=self.said.append, is_gone=self.lost.__contains__
        )
        self.sync = OutputSync(output, writer, retention, self.told, NodeFolder(folder, folder, None, None))

    def told(self, progress: ScriptProgress) -> None:
        self.progress.append(progress)


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = RunFolder(open_storage(str(tmp_path / "run")))
    first_group(folder)
    return folder


@pytest.fixture
def node(run: RunFolder, tmp_path: Path) -> Node:
    return Node(run, tmp_path / "node", DictBoard())


def steps(run: RunFolder) -> list[int]:
    return [item.step for item in list_checkpoints(run)]


def is_stored(run: RunFolder, prefix: str, files: dict[str, bytes]) -> bool:
    return stored(run, prefix) == files


def stored(run: RunFolder, prefix: str) -> dict[str, bytes]:
    """The files below a folder of the run's first attempt."""
    folder = run.storage.sub(f"attempts/1/{prefix}")
    return {entry.key: folder.read_bytes(entry.key) for entry in folder.list_files()}


def test_all_that_a_program_writes_gets_to_the_run_folder(run: RunFolder, node: Node) -> None:
    node.out.mkdir(parents=True)
    (node.out / "config.json").write_text("of the package")
    (node.out / "tokens.txt").write_text("of an earlier attempt")
    node.sync.start(["tokens.txt"])
    path = write_trainer_checkpoint(node.out, 10, wer=0.5)
    (node.out / "runs").mkdir()
    (node.out / "runs/log.txt").write_text("one line")
    wait_until(lambda: steps(run) == [10] and node.progress != [], "the first checkpoint")
    wait_until(lambda: stored(run, "outputs").get("runs/log.txt") == b"one line", "the log")
    (node.out / "runs/log.txt").write_text("two lines")
    wait_until(lambda: stored(run, "outputs").get("runs/log.txt") == b"two lines", "the longer log")
    write_trainer_checkpoint(node.out, 20, wer=0.25)
    begin_trainer_checkpoint(node.out, 30)
    (node.out / "model.safetensors").write_bytes(bytes(SMALL_BYTES + 1))
    (node.out / "all_results.json").write_text(json.dumps({"eval_wer": 0.25}))
    node.sync.finish(ended_well=True)
    assert steps(run) == [10, 20]
    assert (node.progress[0].step, node.progress[0].wer) == (10, 50.0)
    assert (node.progress[-1].step, node.progress[-1].wer) == (20, 25.0)
    files = stored(run, "outputs-x")
    assert files.keys() == {
        "files/" + name for name in ("runs/log.txt", "model.safetensors", "all_results.json", "tokens.txt")
    }
    assert stored(run, "outputs").keys() <= {"runs/log.txt", "all_results.json", "tokens.txt"}
    assert path.is_dir()
    assert [item.name for item in node.out.parent.iterdir()] == ["out"]


def test_a_checkpoint_is_entered_after_the_log_that_goes_with_it(
    run: RunFolder, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync, "SMALL_FILES_S", 3600.0)
    node.sync.start()
    node.out.mkdir(parents=True)
    (node.out / "train_log.txt").write_text("epoch: 1")
    write_trainer_checkpoint(node.out, 10)
    wait_until(lambda: steps(run) == [10], "the checkpoint")
    assert stored(run, "outputs") == {"train_log.txt": b"epoch: 1"}
    node.sync.finish(ended_well=True)


def test_after_a_bad_end_its_checkpoint_and_its_small_files_are_there(run: RunFolder, node: Node) -> None:
    node.sync.start()
    write_trainer_checkpoint(node.out, 10)
    begin_trainer_checkpoint(node.out, 20)
    (node.out / "model.safetensors").write_bytes(bytes(SMALL_BYTES + 1))
    (node.out / "log.txt").write_text("Traceback")
    node.sync.finish(ended_well=False)
    assert steps(run) == [10]
    assert stored(run, "outputs") == {"log.txt": b"Traceback"}
    assert stored(run, "outputs-x") == {}
    assert node.said == ["checkpoint-20 is not kept: nothing shows that the program has completed it"]


def test_a_storage_that_fails_for_a_while_costs_no_checkpoint(
    run: RunFolder, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise StorageError("the storage is away")

    node.sync.start()
    with monkeypatch.context() as patch:
        patch.setattr(type(run.storage), "upload_file", refuse)
        write_trainer_checkpoint(node.out, 10)
        wait_until(lambda: node.said == ["the storage is away"], "that the storage is away")
    wait_until(lambda: steps(run) == [10], "the checkpoint")
    with monkeypatch.context() as patch:
        patch.setattr(type(run.storage), "upload_file", refuse)
        write_trainer_checkpoint(node.out, 20)
        (node.out / "model.safetensors").write_bytes(b"model")
        with pytest.raises(StorageError, match="the storage is away"):
            node.sync.finish(ended_well=True)
    assert steps(run) == [10]
    assert "checkpoint-20 could not be kept: the storage is away" in node.said


def test_a_group_that_another_has_replaced_ends_on_all_nodes(run: RunFolder, tmp_path: Path) -> None:
    board = DictBoard()
    node = Node(run, tmp_path / "node", board, count=2)
    node.sync.start()
    group_of(begin(run), "y")
    write_trainer_checkpoint(node.out, 10)
    with pytest.raises(FencedError):
        node.sync.finish(ended_well=True)
    assert (steps(run), board.posted(parts.END)) == ([], True)


def test_an_error_of_ours_does_not_end_it(run: RunFolder, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(progress: ScriptProgress) -> None:
        raise TypeError("a bug")

    node.sync.on_progress = fail
    node.sync.start()
    write_trainer_checkpoint(node.out, 10)
    wait_until(lambda: any("a bug" in line for line in node.said), "the error")
    wait_until(lambda: steps(run) == [10], "the checkpoint")
    node.sync.on_progress = node.told
    node.sync.finish(ended_well=False)


@pytest.mark.parametrize("well", [True, False])
def test_nodes_that_share_nothing_keep_one_checkpoint_and_their_own_files(
    run: RunFolder, tmp_path: Path, well: bool
) -> None:
    board = DictBoard()
    nodes = [Node(run, tmp_path / f"node-{number}", board, number, 2) for number in range(2)]
    for each in nodes:
        each.sync.start()
    write_trainer_checkpoint(nodes[0].out, 10)
    (nodes[1].out / "checkpoint-10").mkdir(parents=True)
    save_archive(nodes[1].out / "checkpoint-10/rng_state_1.pth", b"r")
    wait_until(lambda: steps(run) == [10], "the checkpoint")
    (nodes[1].out / "log.txt").write_text("of node 1")
    write_trainer_checkpoint(nodes[0].out, 20)
    with ThreadPoolExecutor() as pool:
        for ended in [pool.submit(each.sync.finish, ended_well=well) for each in reversed(nodes)]:
            ended.result()
    assert steps(run) == [10, 20]
    assert "checkpoint-10/rng_state_1.pth" in list_checkpoints(run)[0].files
    assert stored(run, "outputs") == {"node-1/log.txt": b"of node 1"}
    assert [each.said for each in nodes] == [[], []]


def test_a_checkpoint_is_not_complete_while_the_program_waits_at_a_barrier_within(
    run: RunFolder, tmp_path: Path
) -> None:
    board = DictBoard()
    main, other = (Node(run, tmp_path / f"node-{number}", board, number, 2) for number in range(2))
    path = write_brain_checkpoint(tmp_path, 20)
    last = path / "optimizer.ckpt"
    content = last.read_bytes()
    last.unlink()
    main.sync.start()
    requests = tmp_path / "node-0" / "requests"
    requests.mkdir(parents=True)
    (requests / "asked-1").touch()
    shutil.move(path, main.out / "save" / path.name)
    for line in ("one", "two", "three"):
        # Each is stored after as long as a checkpoint is unchanged before it is complete.
        (main.out / "log.txt").write_text(line)
        wait_until(partial(is_stored, run, "outputs", {"log.txt": line.encode()}), "the log")
    assert steps(run) == []
    other.sync.start()
    wait_until((requests / "shared-1").exists, "the end of the barrier")
    (main.out / "save" / path.name / last.name).write_bytes(content)
    wait_until(lambda: steps(run) == [20], "the checkpoint")
    (found,) = list_checkpoints(run)
    assert any(name.endswith(last.name) for name in found.files)
    with ThreadPoolExecutor() as pool:
        for ended in [pool.submit(each.sync.finish, ended_well=True) for each in (other, main)]:
            ended.result()
    assert steps(run) == [20]


def test_a_node_that_is_lost_is_not_waited_for(run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "LOOK_S", 0.1)
    board = DictBoard()
    main, other = (Node(run, tmp_path / f"node-{number}", board, number, 2) for number in range(2))
    main.sync.start()
    write_trainer_checkpoint(main.out, 10)
    wait_until(lambda: main.said == ["checkpoint-10: waits for node 1 to store its part"], "that it waits")
    main.lost.add(1)
    main.sync.finish(ended_well=False)
    assert steps(run) == []
    assert main.said[1] == "checkpoint-10: node 1 ended or was lost before it had stored its part"
    lonely = Node(run, tmp_path / "node-1", DictBoard(), 1, 2)
    lonely.lost.add(0)
    lonely.sync.start()
    lonely.sync.finish(ended_well=False)
    assert other.said == lonely.said == []
