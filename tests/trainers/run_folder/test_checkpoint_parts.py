"""A checkpoint whose ranks wrote on several nodes: each stores its own files, and it exists when all are stored."""

import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.trainers.run_folder.writers import begin, first_group, group_of
from trainers.distributed.session import LocalSession
from trainers.errors import FencedError, StorageError
from trainers.run_folder.checkpoints import (
    PART,
    RetentionPolicy,
    Uploader,
    fetch,
    list_checkpoints,
    model_of,
    upload_part,
    upload_staged,
)
from trainers.run_folder.fencing import GroupWriter
from trainers.run_folder.journal import Checkpoint
from trainers.run_folder.layout import CHECKPOINTS, RunFolder
from trainers.run_folder.resume import starting_point, take_over
from trainers.run_folder.staging import (
    ONLY_PART,
    NodePart,
    StagedPart,
    Staging,
    list_staged,
    read_staged,
    stage,
    staged_checkpoints_to_upload,
)
from trainers.storage import open_storage

KEEP_ALL = RetentionPolicy(None, "eval_wer")
TIMEOUT_S = 30.0


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """An empty run folder."""
    return RunFolder(open_storage(str(tmp_path / "run")))


def staged_part(node: Path, index: int, count: int = 2, step: int = 8, name: str = "a1-x") -> Path:
    """What the ranks of one node have written: all have a shard, the first node the model too."""
    path = node / f"checkpoint-{step}-{name}"
    (path / f"global_step{step}").mkdir(parents=True)
    (path / f"global_step{step}" / f"zero_pp_rank_{index}_optim_states.pt").write_bytes(bytes([index]) * 100)
    if index == 0:
        (path / "model.safetensors").write_bytes(b"weights")
    stage(path, step=step, attempt=1, metrics={"eval_wer": 5.0}, part=NodePart(index, count))
    return path


def test_it_is_entered_once_all_parts_are_stored(folder: RunFolder, tmp_path: Path) -> None:
    writer = first_group(folder)
    first, second = (staged_part(tmp_path / f"node{index}", index) for index in (0, 1))
    entered = threading.Event()
    uploader = Uploader(writer, KEEP_ALL, also=lambda checkpoint, seconds: entered.set())
    uploader.submit(first)
    target = folder.storage.sub(f"{CHECKPOINTS}/{first.name}")
    while not target.exists("model.safetensors"):
        assert not entered.is_set()
    assert list_checkpoints(folder) == [], "the other node's shard is not stored"
    upload_part(second, writer)
    uploader.wait()
    (made,) = list_checkpoints(folder)
    shards = [f"global_step8/zero_pp_rank_{index}_optim_states.pt" for index in (0, 1)]
    assert list(made.files) == [*shards, "model.safetensors"]
    assert not first.exists()
    assert second.exists(), "until its node learns that the checkpoint was entered"
    fetch(folder.storage.sub(CHECKPOINTS), made, tmp_path / "fetched")
    assert [(tmp_path / "fetched" / name).stat().st_size for name in shards] == [100, 100]
    assert list(model_of(made).files) == ["model.safetensors"], "a shard is no part of the model"


def test_shards_of_fsdp2_are_stored_with_what_they_are_parts_of(folder: RunFolder, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint-8-a1-x"
    shards = [f"{of}_0/{name}" for of in ("optimizer", "pytorch_model_fsdp") for name in (".metadata", "__1_0.distcp")]
    for name in ("model.safetensors", *shards):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(name.encode())
    stage(path, step=8, attempt=1, metrics={"eval_wer": 5.0})
    made = upload_staged(path, first_group(folder), KEEP_ALL)
    assert list(made.files) == ["model.safetensors", *shards]
    fetch(folder.storage.sub(CHECKPOINTS), made, tmp_path / "fetched")
    assert [(tmp_path / "fetched" / name).read_bytes().decode() for name in shards] == shards
    assert list(model_of(made).files) == ["model.safetensors"], "a shard is no part of the model"


def test_nobody_waits_for_parts_of_a_run_that_was_taken_over(folder: RunFolder, tmp_path: Path) -> None:
    driver = begin(folder)
    stale = group_of(driver, "x")
    uploader = Uploader(stale, KEEP_ALL, also=lambda checkpoint, seconds: None)
    uploader.submit(staged_part(tmp_path, 0))
    group_of(begin(folder), "y")
    with pytest.raises(FencedError):
        uploader.wait()
    assert list_checkpoints(folder) == []


def test_parts_of_a_killed_group_come_together_under_a_name_of_the_next(folder: RunFolder, tmp_path: Path) -> None:
    writer = first_group(folder, "y")
    upload_part(staged_part(tmp_path / "node1", 1), writer)
    made: Checkpoint = upload_staged(staged_part(tmp_path / "node0", 0), writer, KEEP_ALL)
    assert made.name == "checkpoint-8-a1-x-y"
    assert folder.storage.exists(f"{CHECKPOINTS}/{made.name}/{PART.format(1)}")
    assert len(made.files) == 3


@dataclass(frozen=True)
class ThreadSession(LocalSession):
    """The only rank of a node, which is a thread; what is gathered goes through a list that all share."""

    together: Any = None
    items: Any = None

    @property
    def node(self) -> str:
        """See Session."""
        return str(self.rank)

    def gather(self, item: Any, what: str) -> list[Any]:
        """See Session."""
        self.items[self.rank] = item
        self.together.wait(TIMEOUT_S)
        gathered = list(self.items)
        self.together.wait(TIMEOUT_S)
        return gathered

    def broadcast(self, make: Any, what: str) -> Any:
        """See Session."""
        return self.gather(make() if self.is_main_process else None, what)[0]

    def barrier(self, what: str) -> None:
        """See Session."""
        self.together.wait(TIMEOUT_S)


@pytest.mark.parametrize("is_full", [False, True])
def test_nodes_take_over_a_killed_group_s_parts_or_all_raise_what_went_wrong(
    folder: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_full: bool
) -> None:
    driver, upload = begin(folder), type(folder.storage).upload_file

    def upload_file(storage: Any, local: Path, key: str) -> None:
        if is_full and "zero_pp_rank_1" in key:
            raise StorageError(f"{storage.url(key)}: no space left on device")
        upload(storage, local, key)

    monkeypatch.setattr(type(folder.storage), "upload_file", upload_file)
    together, items = threading.Barrier(2), [None, None]

    said: dict[int, str] = {}

    def node(rank: int) -> None:
        for step in (8, 16):
            staged_part(tmp_path / f"node{rank}" / "x", rank, step=step)
        writer = GroupWriter.of(folder, driver.attempt, "y")
        staging = Staging(tmp_path / f"node{rank}", "y", str(rank))
        try:
            take_over(staging, writer, KEEP_ALL, ThreadSession(rank, 2, 0, together, items), managed_by_service=False)
            said[rank] = ""
        except StorageError as error:
            said[rank] = str(error)

    nodes = [threading.Thread(target=node, args=(rank,), daemon=True) for rank in range(2)]
    for thread in nodes:
        thread.start()
    for thread in nodes:
        thread.join(TIMEOUT_S)
    assert len(said) == 2, "none waits for ever"
    assert said[0] == said[1]
    assert ("zero_pp_rank_1_optim_states.pt: no space left on device" in said[0]) == is_full
    assert [item.step for item in list_checkpoints(folder)] == ([] if is_full else [8, 16])


def test_a_node_fetches_no_shards_of_other_nodes_ranks_unless_it_vouches_for_all(
    folder: RunFolder, tmp_path: Path
) -> None:
    writer = first_group(folder, "y")
    upload_part(staged_part(tmp_path / "node1", 1), writer)
    made: Checkpoint = upload_staged(staged_part(tmp_path / "node0", 0), writer, KEEP_ALL)
    together, items = threading.Barrier(2), [None, None]
    found: dict[int, set[str]] = {}

    def node(rank: int) -> None:
        staging = Staging(tmp_path / f"node{rank}" / "z", "z", str(rank))
        start = starting_point(staging, writer, ThreadSession(rank, 2, 0, together, items))
        assert start is not None and start[0] == made
        found[rank] = {path.name for path in start[1].rglob("*") if path.is_file()}

    nodes = [threading.Thread(target=node, args=(rank,), daemon=True) for rank in range(2)]
    for thread in nodes:
        thread.start()
    for thread in nodes:
        thread.join(TIMEOUT_S)
    shards = [f"zero_pp_rank_{rank}_optim_states.pt" for rank in (0, 1)]
    assert found[0] == {"model.safetensors", *shards}, "the main process finds damage, and chooses another one"
    assert found[1] == {"model.safetensors", shards[1]}


class TestWhatAKilledGroupLeft:
    def test_a_marker_of_a_whole_checkpoint_is_as_before(self, tmp_path: Path) -> None:
        path = tmp_path / "checkpoint-8-a1-x"
        path.mkdir()
        stage(path, step=8, attempt=1, metrics={})
        assert "part" not in (path / "STAGED.json").read_text()
        assert read_staged(path)[1] == ONLY_PART

    def test_all_of_which_no_part_is_missing_are_taken_the_oldest_first(self, tmp_path: Path) -> None:
        for step, indexes in ((16, (0, 1)), (8, (0, 1)), (24, (1,))):
            for index in indexes:
                staged_part(tmp_path / f"node{index}", index, step=step)
        of_ranks = [list_staged([tmp_path / "node0"]), [], list_staged([tmp_path / "node1"]), []]
        found = [
            [(rank, each.step, each.part.number) for rank, each in parts]
            for parts in staged_checkpoints_to_upload([], of_ranks)
        ]
        assert found == [[(0, 8, 0), (2, 8, 1)], [(0, 16, 0), (2, 16, 1)]]

    def test_a_part_that_two_ranks_see_is_stored_once(self) -> None:
        first = StagedPart(8, "checkpoint-8-a1-x", NodePart(0, 2), Path("/a"))
        second = StagedPart(8, "checkpoint-8-a1-x", NodePart(1, 2), Path("/b"))
        assert staged_checkpoints_to_upload([], [[first, second], [first, second]]) == [[(0, first), (0, second)]]

    def test_nothing_complete_is_nothing(self) -> None:
        lone = StagedPart(8, "checkpoint-8-a1-x", NodePart(0, 2), Path("/x"))
        assert staged_checkpoints_to_upload([], [[lone], []]) == []

    def test_of_one_step_one_is_taken_and_a_score_that_the_run_lacks_is_ahead(self) -> None:
        run = [Checkpoint("checkpoint-8-a1-x", 8, 1, {}, "", {})]
        scored = StagedPart(8, "checkpoint-8-a1-y", ONLY_PART, Path("/y"))
        twice = [StagedPart(16, f"checkpoint-16-a1-{name}", ONLY_PART, Path(f"/{name}")) for name in "yz"]
        plain = StagedPart(8, "checkpoint-8-a1-z", ONLY_PART, Path("/z"), is_scored=False)
        assert staged_checkpoints_to_upload(run, [[*twice, plain, scored]]) == [[(0, scored)], [(0, twice[1])]]
        assert staged_checkpoints_to_upload([*run, replace(run[0], metrics={"eval_wer": 5.0})], [[plain, scored]]) == []
