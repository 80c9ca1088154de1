"""The ranks of a node, as threads of one process: what one does to the others, and what is kept at their end."""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.trainers.run_folder.writers import begin, group_of
from tests.trainers.scripts.outputs.programs import DictBoard, write_trainer_checkpoint
from tests.trainers.scripts.outputs.test_restore import keep
from trainers.config.schema import ScriptConfig
from trainers.distributed.console import Event
from trainers.distributed.coordinator import EndRequest
from trainers.errors import FollowingError, RegroupError, ScriptError, StorageError
from trainers.run_folder.checkpoints import list_checkpoints
from trainers.run_folder.layout import RunFolder
from trainers.scripts import program_worker
from trainers.scripts.backend import GroupMember, RankContext
from trainers.scripts.node_folder import UNPACKED, ScriptTask
from trainers.scripts.outputs.output_folder import LEFT_OUT
from trainers.scripts.outputs.restore import restore
from trainers.scripts.outputs.sync import OutputSync
from trainers.scripts.program_worker import _Rank, run_program_per_worker
from trainers.storage import open_storage

# Of the program, for each rank by its number.
PROGRAM = """
import os, pathlib, signal, sys, time
rank, out = int(os.environ["RANK"]), pathlib.Path("out")
def wait_for(name):
    while not pathlib.Path(name).exists():
        time.sleep(0.02)
"""


class GroupBoard(DictBoard):
    """The board of a group, as its ranks use the coordinator's."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.request: EndRequest | None = None
        self.reason: str | None = None

    def try_post(self, topic: str, value: Any) -> None:
        self.post(topic, value)

    def show(self, event: Event) -> None:
        if isinstance(event, str):
            self.lines.append(event)

    def say_all(self, lines: list[str]) -> None:
        self.lines += lines

    def begin(self, nodes: tuple[str, ...]) -> None:
        self.nodes = nodes

    def restart_reason(self) -> str | None:
        return self.reason

    def is_alive(self, node: str) -> bool:
        return True

    def set_phase(self, phase: str) -> None:
        self.phase = phase

    def end_request(self) -> EndRequest | None:
        # Once all programs have begun.
        return self.request if "[rank 0] ready" in self.lines and "[rank 1] ready" in self.lines else None


class Group:
    """Two ranks of a node, whose program is in a package."""

    def __init__(self, tmp_path: Path, *code: str, out: str = "out"):
        self.folder, self.board = RunFolder(open_storage(str(tmp_path / "run"))), GroupBoard()
        begin(self.folder)
        package = tmp_path / UNPACKED / "package"
        package.mkdir(parents=True)
        lines = [f"if rank == {rank}:\n    {each.replace(chr(10), chr(10) + '    ')}" for rank, each in enumerate(code)]
        (package / "train.py").write_text("\n".join([PROGRAM, *lines]))
        self.config = ScriptConfig.model_validate(
            {"trainer": "script", "script": {"command": ["train.py", "--output_dir", out], "stop_grace_s": 20}}
        )
        self.task = ScriptTask(self.config, 1, None, "gcs://package.zip")

        self.left: list[int] = []

    def run(self, count: int = 2, nodes: int = 1) -> list[Future[str | None]]:
        """What each rank has come to; they are in `left` in the order in which they ended."""
        with ThreadPoolExecutor(count) as pool:
            found = [pool.submit(self._run, number, count, nodes) for number in range(count)]
        return found

    def _run(self, number: int, count: int, nodes: int) -> str | None:
        each = count // nodes
        context = RankContext(number, count, number % each, each, number // each, nodes, "127.0.0.1", 29500)
        names = tuple(f"node-{rank // each}" for rank in range(count))
        board: Any = self.board
        try:
            return _Rank(self.task, self.folder, GroupMember("x", context, names), board).run()
        finally:
            self.left.append(number)

    def kept(self, folder: str) -> set[str]:
        return {entry.key for entry in self.folder.storage.sub(f"attempts/{self.task.attempt}/{folder}").list_files()}

    @property
    def steps(self) -> list[int]:
        return [item.step for item in list_checkpoints(self.folder)]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(program_worker, "POLL_S", 0.1)
    monkeypatch.setattr(program_worker, "SHOW_INTERVAL_S", 0.0)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / UNPACKED / 'package'}")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)


BRAIN = """
save = out / "save/CKPT+1"
save.mkdir(parents=True)
(save / "CKPT.yaml").write_text("end-of-epoch: true")
"""


@pytest.mark.integration
def test_a_node_s_folder_stays_until_its_last_rank_has_ended(tmp_path: Path) -> None:
    group = Group(
        tmp_path,
        'out.mkdir(); (out / "of-0").write_text("0")',
        'wait_for("out/of-0"); time.sleep(2); (out / "of-1").write_text("1")',
    )
    assert [each.result() for each in group.run()] == [None, None]
    assert group.kept("outputs-x") >= {"files/of-0", "files/of-1"}


@pytest.mark.integration
def test_a_rank_that_fails_leaves_when_the_keeper_has_stored_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = Group(
        tmp_path,
        'out.mkdir(); (out / "log.txt").write_text("0"); time.sleep(60)',
        'wait_for("out/log.txt"); sys.exit(7)',
    )
    finish, left = OutputSync.finish, list[int]()

    def slowly(sync: OutputSync, *, ended_well: bool) -> None:
        time.sleep(1)
        finish(sync, ended_well=ended_well)
        left.extend(group.left)

    monkeypatch.setattr(OutputSync, "finish", slowly)
    keeper, failed = group.run()
    error = failed.exception()
    assert isinstance(error, ScriptError) and error.exit_code == 7
    assert isinstance(keeper.exception(), FollowingError)
    assert left == []
    assert group.kept("outputs") == {"log.txt"}


@pytest.mark.integration
def test_ranks_leave_for_another_group_when_the_slowest_has_saved(tmp_path: Path) -> None:
    save = """
def save(*_):
    time.sleep({pause})
    path = out / "checkpoint-{step}"
    path.mkdir(parents=True, exist_ok=True)
    (path / "trainer_state.json").write_text("{{}}")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("ready")
time.sleep(60)
"""
    group = Group(tmp_path, save.format(step=10, pause=2), save.format(step=10, pause=0))
    group.board.request = EndRequest("node is drained")
    errors = [each.exception() for each in group.run()]
    assert all(isinstance(error, RegroupError) and "checkpoint-10-a1-x" in str(error) for error in errors), errors
    assert group.steps == [10]


def test_what_a_signal_has_cut_is_no_checkpoint(tmp_path: Path) -> None:
    ready = 'print("ready"); time.sleep(60)'
    group = Group(tmp_path, BRAIN + ready, ready)
    group.board.request = EndRequest()
    first, second = (each.result() for each in group.run())
    assert first is not None and "code -15; no checkpoint was made" in first and second is not None
    assert group.steps == []
    assert any("CKPT+1 is not kept" in line for line in group.board.lines)


def test_a_storage_that_fails_does_not_hide_why_a_program_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(sync: OutputSync, *, ended_well: bool) -> None:
        raise StorageError("s3://bucket: no route to host")

    monkeypatch.setattr(OutputSync, "finish", fail)
    group = Group(tmp_path, "sys.exit(5)", "time.sleep(60)")
    error = group.run()[0].exception()
    assert isinstance(error, ScriptError) and error.exit_code == 5
    assert "[rank 0] not all output of the program could be stored: s3://bucket: no route to host" in group.board.lines


@pytest.mark.integration
def test_what_a_folder_has_is_noted_before_any_program_of_the_node_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = Group(tmp_path, "wait_for('out/of-1')", 'out.mkdir(); (out / "of-1").write_text("1")')
    start, ready = OutputSync.start, list[object]()

    def slowly(sync: OutputSync, given_back: frozenset[str]) -> None:
        time.sleep(1)
        ready.append(group.board.posted("node-0"))
        start(sync, given_back)

    monkeypatch.setattr(OutputSync, "start", slowly)
    assert [each.result() for each in group.run()] == [None, None]
    assert ready == [None] and "files/of-1" in group.kept("outputs-x")


def test_a_reference_to_a_secret_has_its_value_on_the_node_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYSCRIBE_SECRETS", '{"HF_TOKEN": {"env": "HF_TOKEN"}}')
    monkeypatch.setenv("HF_TOKEN", "swordfish")
    group = Group(tmp_path, "print(len(sys.argv[-1]), len(os.environ['API_KEY']), sys.argv[-1])")
    part = group.config.script
    with_token = {"command": (*part.command, "--hub_token", "${HF_TOKEN}"), "env": {"API_KEY": "${HF_TOKEN}"}}
    config = group.config.model_copy(update={"script": part.model_copy(update=with_token)})
    group.task = ScriptTask(config, 1, None, "gcs://package.zip")
    assert group.run(1)[0].exception() is None
    assert "[rank 0] 9 9 ***" in group.board.lines


def test_what_the_node_fills_in_is_in_no_log_and_no_error_though_the_job_names_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of no job; and the environment is as it was when the test has ended.
    for name in ("RAYSCRIBE_SECRETS", "A", "B", "HF_TOKEN"):
        monkeypatch.setenv(name, f"fish-{name}" if name != "RAYSCRIBE_SECRETS" else "{}")
    group = Group(tmp_path, "sys.exit(' '.join([*sys.argv[3:], os.environ['X_KEY']]))")
    part = group.config.script
    command = (*part.command, "--password=${A}", "-p", "${HF_TOKEN}")
    script = part.model_copy(update={"command": command, "env": {"X_KEY": "token=${B}"}})
    config = group.config.model_copy(update={"script": script})
    member = GroupMember("x", RankContext(0, 1, 0, 1, 0, 1, "127.0.0.1", 29500), ("node-0",))
    monkeypatch.setattr(program_worker, "this_member", lambda: member)
    monkeypatch.setattr(program_worker, "CoordinatorBoard", lambda *_: group.board)
    task = ScriptTask(config, 1, None, "gcs://package.zip")
    with pytest.raises(ScriptError) as caught:
        run_program_per_worker({"task": task, "coordinator": None, "folder": group.folder})
    shown = f"{caught.value}\n{group.board.lines}"
    assert "fish" not in shown and "--password=*** -p *** token=***" in shown


@pytest.mark.parametrize("has_checkpoint", [False, True])
@pytest.mark.integration
def test_a_program_that_would_ignore_its_checkpoint_is_not_told_to_where_it_has_one(
    tmp_path: Path, has_checkpoint: bool
) -> None:
    code = "print(sys.argv[1:], [*pathlib.Path('out').glob('checkpoint-10/trainer_state.json')] != [])"
    group = Group(tmp_path, code, code)
    if has_checkpoint:
        made = write_trainer_checkpoint(tmp_path / "made", 10)
        keep(group_of(begin(group.folder), "y"), made.parent, made, 10)
    part = group.config.script
    command = (*part.command, "--overwrite_output_dir", "--fp16")
    config = group.config.model_copy(update={"script": part.model_copy(update={"command": command})})
    group.task = ScriptTask(config, 2 if has_checkpoint else 1, None, "gcs://package.zip")
    assert [each.exception() for each in group.run(nodes=2)] == [None, None]
    arguments = ["--output_dir", "out", *([] if has_checkpoint else ["--overwrite_output_dir"]), "--fp16"]
    assert {f"[rank {rank}] {arguments} {has_checkpoint}" for rank in range(2)} <= set(group.board.lines)
    assert (LEFT_OUT in group.board.lines) == has_checkpoint


def test_without_other_ranks_a_broken_connection_is_the_program_s_own_failure(tmp_path: Path) -> None:
    error = Group(tmp_path, "print('OSError: Broken pipe'); sys.exit(9)").run(1)[0].exception()
    assert isinstance(error, ScriptError) and error.exit_code == 9


@pytest.mark.parametrize("out", ["out", "shared"])
@pytest.mark.integration
def test_nodes_that_share_an_output_folder_put_back_and_keep_what_is_there_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str
) -> None:
    folder = str(tmp_path / out) if out == "shared" else out
    found = f'print([*pathlib.Path("{folder}").glob("checkpoint-10/trainer_state.json")] != [])'
    write = f'(pathlib.Path("{folder}") / f"of-{{rank}}").write_text("")'
    group = Group(tmp_path, f"{found}; {write}", f"{found}; time.sleep(2); {write}", out=folder)
    made = write_trainer_checkpoint(tmp_path / "made", 10)
    keep(group_of(begin(group.folder), "y"), made.parent, made, 10)
    group.task = ScriptTask(group.config, 2, None, "gcs://package.zip")
    restored: list[Path] = []

    def counted(*arguments: Any, **options: Any) -> Any:
        restored.append(arguments[2])
        time.sleep(0.5)
        return restore(*arguments, **options)

    monkeypatch.setattr(program_worker, "restore", counted)
    assert [each.exception() for each in group.run(nodes=2)] == [None, None]
    assert len(restored) == (1 if out == "shared" else 2)
    assert {f"[rank {rank}] True" for rank in range(2)} <= set(group.board.lines)
    assert "files/of-0" in group.kept("outputs-x")
    assert ("files/of-1" in group.kept("outputs-x"), "node-1/of-1" in group.kept("outputs")) == (
        out == "shared",
        out != "shared",
    )
    assert not [*tmp_path.glob(".shared*")]
