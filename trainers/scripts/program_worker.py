"""What each Ray worker does with a program: prepare its node, run its rank, keep what it writes, say how it ended."""

import os
import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from signal import SIGKILL, SIGTERM, Signals
from typing import Any, NamedTuple

from runtime_env.secret_arguments import secret_references, with_secrets
from trainers.config.secrets import add_secrets, resolve_secrets
from trainers.distributed.console.events import Stage
from trainers.distributed.coordinator import STOPPABLE, EndRequest
from trainers.distributed.machine import GLOO_INTERFACE, interface_of
from trainers.distributed.root_cause import is_broken_connection
from trainers.errors import FencedError, FollowingError, LostWorkerError, RayscribeError, RegroupError, ScriptError
from trainers.run_folder.attempt_status import Phase, StatusWriter, restarts_of
from trainers.run_folder.checkpoints import newest, sweep
from trainers.run_folder.fencing import GroupWriter
from trainers.run_folder.journal import Journal, State
from trainers.run_folder.layout import RESULT, RunFolder
from trainers.run_folder.worker_logs import finish_logs, worker_log
from trainers.scripts.accelerators import accelerator_of, check_build
from trainers.scripts.backend import GroupMember, release_port, this_member
from trainers.scripts.board import CoordinatorBoard
from trainers.scripts.inputs.fetch import InputFetcher
from trainers.scripts.inputs.placeholders import Known, resolve
from trainers.scripts.inputs.prepare import key_of, prepared_data
from trainers.scripts.node_folder import INPUTS, NodeFolder, ScriptTask
from trainers.scripts.outputs.checkpoint_keeper import NewestAndBest
from trainers.scripts.outputs.layouts import layouts_for
from trainers.scripts.outputs.output_folder import LEFT_OUT, output_folder_of, without_overwriting
from trainers.scripts.outputs.progress import ScriptProgress, read_progress
from trainers.scripts.outputs.restore import give_back_files, restore
from trainers.scripts.outputs.shared_files import program_variables
from trainers.scripts.outputs.sync import OutputSync, sharing_nodes
from trainers.scripts.program import DATA, Program, program_environment, program_words
from trainers.storage.own_folder import own_temporary_folder

POLL_S = 1.0
SHOW_INTERVAL_S = 0.5
# Of one rank at a time in the driver's log; its own log has all of them.
MOST_LINES = 500
# Of one of the last lines in an error; Ray keeps 20,000 characters of a job's log, and the code must be among them.
LONGEST_SHOWN = 500
# How long a program may take to end after another rank's has failed.
FOLLOW_S = 5.0
# For how long a rank that has failed waits for the nodes to store what their programs have left.
KEPT_TIMEOUT_S = 1800.0
START, FAILED, KEPT = "start", "failed", "kept-{}"
# The keeper of a node is ready for its programs; those of a node that shares the main node's output folder have ended.
READY, ENDED = "node-{}", "ended-{}"


class _Output(NamedTuple):
    """The output folder of a node, None where it is not known.

    Attributes:
        shared: The nodes that share the main node's, see `sharing_nodes`.
        given_back: Files that a restart has put there.
    """

    folder: Path | None
    shared: frozenset[int]
    given_back: frozenset[str]


# Of a rank that is not the first of its node.
_NO_OUTPUT = _Output(None, frozenset(), frozenset())


def run_program_per_worker(loop_config: dict[str, Any]) -> str | None:
    """Runs the rank of this worker; gives what the driver says of a run that was stopped, None of one that ended well.

    The config has `task`, a ScriptTask, `coordinator` and `folder`, the run folder.
    """
    resolve_secrets(os.environ)
    task, folder, member = loop_config["task"], loop_config["folder"], this_member()
    script = task.config.script
    for words in (script.command, script.prepare or (), [f"{name}={value}" for name, value in script.env.items()]):
        # Before any log begins, since it looks for secrets when it does.
        add_secrets(os.environ, secret_references(words, os.environ))
    if member.context.is_keeper:
        finish_logs(folder)
    with worker_log(folder, task.attempt, rank=member.context.rank, group=member.group):
        return _Rank(task, folder, member, CoordinatorBoard(loop_config["coordinator"], member.group)).run()


@dataclass
class _Rank:
    """One rank of a group."""

    task: ScriptTask
    folder: RunFolder
    member: GroupMember
    board: CoordinatorBoard

    @property
    def name(self) -> str:
        return f"rank {self.member.context.rank}"

    def run(self) -> str | None:
        """Runs the rank to its end; see `run_program_per_worker`.

        Raises:
            RayscribeError: what ended it.
        """
        context, script = self.member.context, self.task.config.script
        if context.rank == 0:
            self._open_group()
        state: State = self._wait_for(START)
        node = NodeFolder.of(self.task, self.folder, self.member, os.environ)
        with node.made() if context.is_keeper else nullcontext():
            words, environment = self._words(node, state)
            if state.checkpoints and without_overwriting(words) != words:
                words = without_overwriting(words)
                if context.rank == 0:
                    self.board.show(LEFT_OUT)
            ready = READY.format(context.node_number)
            output, shared, given_back = _NO_OUTPUT
            if context.is_keeper:
                output, shared, given_back = self._prepare_node(words, environment, node, state)
            if context.rank == 0 and context.node_count > 1 + len(shared) and output is not None:
                environment |= program_variables(output, node.requests, environment)
            with StatusWriter(self.folder, self.task.attempt if context.rank == 0 else None) as status:
                is_another_s = context.node_number in shared
                sync = self._sync(output, node, shared, status) if output is not None and not is_another_s else None
                if sync is not None:
                    # Before any rank of the node starts: what is there now is none of the program's outputs.
                    sync.start(given_back)
                if context.is_keeper:
                    if context.node_number in shared:
                        self._wait_for(READY.format(0))
                    self.board.post(ready, True)
                self._wait_for(ready)
                status.update(Phase.TRAINING, **restarts_of(state, self.task.attempt))
                started = program_words(script, words, node.work, context.local_rank)
                release_port()
                run = _Run(self, node, sync, shared)
                stopped = run.to_the_end(lambda show: Program(started, node.work, environment, show))
            if context.rank == 0 and stopped is None:
                self._write_result(read_progress(output) if output is not None else ScriptProgress())
            return stopped

    def _open_group(self) -> None:
        writer = self._writer()
        state = writer.open(self.member.context.world_size, self.board.restart_reason())
        sweep(writer)
        self.board.begin(self.member.nodes)
        self.board.post(START, state)

    def _writer(self) -> GroupWriter:
        return GroupWriter.of(self.folder, self.task.attempt, self.member.group)

    def _wait_for(self, topic: str) -> Any:
        """What is posted; where its rank fails instead, Ray ends this one, too."""
        while (value := self.board.posted(topic)) is None:
            time.sleep(POLL_S / 5)
        return value

    def _words(self, node: NodeFolder, state: State) -> tuple[list[str], dict[str, str]]:
        """The command and its environment, with what placeholders stand for."""
        context, script = self.member.context, self.task.config.script
        data = self._prepared(node) if script.prepare is not None else None
        words, given = self._resolved(script.command, script.env, data)
        accelerator = accelerator_of(self.task.config.scaling)
        given = {**accelerator.environment(script.hpu_mode), **accelerator.visible(context.devices), **given}
        if data is not None:
            given[DATA] = str(data)
        torchrun = context.environment(
            self.folder.name, restarts_of(state, self.task.attempt).get("restarts", 0), script.max_restarts
        )
        return words, program_environment(os.environ, {**_network(), **given}, torchrun, node.work)

    def _resolved(
        self, words: Sequence[str], variables: Mapping[str, str], data: Path | None
    ) -> tuple[list[str], dict[str, str]]:
        """Words and variables with what their placeholders stand for on this node."""
        config = self.task.config
        fetch = InputFetcher(
            own_temporary_folder(INPUTS), config.run.storage_options, config.script.path_prefix, self._say
        )
        words, variables = resolve(words, variables, Known(self.folder.url, self.task.attempt, data), fetch)
        filled = with_secrets([*words, *(f"{name}={value}" for name, value in variables.items())], os.environ)
        values = (each.partition("=")[2] for each in filled[len(words) :])
        return filled[: len(words)], dict(zip(variables, values, strict=True))

    def _prepared(self, node: NodeFolder) -> Path:
        """The folder that `script.prepare` has written, on this node."""
        script, context = self.task.config.script, self.member.context
        if not context.is_keeper:
            self._wait_for(f"data-{context.node_number}")
            return node.data

        def run(words: Sequence[str], folder: Path, environment: Mapping[str, str]) -> int:
            words, known = self._resolved(words, {**script.env, **environment}, node.data)
            variables = program_environment(os.environ, known, {}, node.work)
            started = program_words(script.model_copy(update={"command": tuple(words)}), words, node.work)
            program = Program(started, folder, variables, self._say)
            code = program.wait(lambda: None)
            if code:
                raise ScriptError.of(
                    f"script.prepare: {words[0]} ended with exit code {code}:\n{_indented(program.last_lines)}",
                    code if code > 0 else 128 - code,
                    time.time(),
                    final=True,
                )
            return code

        assert script.prepare is not None
        made = prepared_data(
            script.prepare,
            key_of(script, self.task.package),
            self.folder,
            node.data,
            run,
            is_main=context.rank == 0,
            board=self.board,
            say=self._say,
            working_dir=node.work,
        )
        self.board.post(f"data-{context.node_number}", True)
        return made

    def _output_folder(self, words: list[str], node: NodeFolder) -> Path | None:
        given = self.task.config.script.sync_dir
        return node.work / given if given is not None else output_folder_of(words, node.work)

    def _prepare_node(
        self, words: list[str], environment: Mapping[str, str], node: NodeFolder, state: State
    ) -> _Output:
        """The output folder of this node, with what the program goes on from."""
        config = self.task.config
        accelerator = accelerator_of(config.scaling)
        if accelerator.resource is not None and config.script.is_python:
            check_build(program_words(config.script, words, node.work)[0], accelerator, platform.node(), environment)
        output, context = self._output_folder(words, node), self.member.context
        shared = sharing_nodes(
            output, self.member.group, context.node_number, context.node_count, self.board, self._wait_for
        )
        given_back = frozenset[str]()
        if output is not None and context.node_number not in shared:
            retention, layouts = NewestAndBest(config.script.num_to_keep), layouts_for(config.script.checkpoints)
            found = restore(self.folder, state, output, layouts, retention=retention, say=self._say)
            if found is not None:
                given_back = give_back_files(self.folder, self.task.attempt, output, node.localize)
                if context.rank == 0:
                    self.board.show(f"script: continues from {found.path} in {output}")
        return _Output(output, shared, given_back)

    def _sync(self, output: Path, node: NodeFolder, shared: frozenset[int], status: StatusWriter) -> OutputSync:
        context, script = self.member.context, self.task.config.script
        nodes = tuple(dict.fromkeys(self.member.nodes))

        def show(progress: ScriptProgress) -> None:
            known = {"step": progress.step, "max_steps": progress.max_steps, "loss": progress.loss, "wer": progress.wer}
            status.update(Phase.TRAINING, **{name: value for name, value in known.items() if value is not None})

        def is_gone(node: int) -> bool:
            return self.board.posted(KEPT.format(node)) is not None or not self.board.is_alive(nodes[node])

        return OutputSync(
            folder=output,
            layouts=layouts_for(script.checkpoints),
            writer=self._writer() if context.node_number == 0 else None,
            run_folder=self.folder,
            attempt=self.task.attempt,
            board=self.board,
            node_number=context.node_number,
            others=tuple(node for node in range(1, context.node_count) if node not in shared),
            retention=NewestAndBest(script.num_to_keep),
            say=self._say,
            on_progress=show,
            is_gone=is_gone,
            node=node,
        )

    def _write_result(self, progress: ScriptProgress) -> None:
        """Writes what the program last said of itself where the driver enters it as the result of the run."""
        outputs = self.folder.sub(self._writer().group.outputs)
        outputs.write_json(RESULT, {"trainer": "script", "attempt": self.task.attempt, "metrics": asdict(progress)})

    def _say(self, line: str) -> None:
        self.board.show(f"[{self.name}] {line}")


class _Run:
    """A program from its start to its end, which a request or the failure of another rank may bring."""

    def __init__(self, rank: _Rank, node: NodeFolder, sync: OutputSync | None, shared: frozenset[int]):
        self._rank, self._node, self._sync, self._shared = rank, node, sync, shared
        self._script = rank.task.config.script
        self._lines: list[str] = []
        self._polled_s = self._shown_s = 0.0
        self._request: EndRequest | None = None
        self._failure: str | None = None
        self._deadline_s: float | None = None
        self._was_killed = False

    def to_the_end(self, start: Callable[[Callable[[str], None]], Program]) -> str | None:
        """Follows the program; gives what is said of a run that was stopped.

        Raises:
            ScriptError: the program failed by itself.
            LostWorkerError: it was killed, or ended since another rank's did.
            RegroupError: it was asked to leave, for workers that go on elsewhere.
        """
        if self._rank.member.context.rank == 0:
            self._rank.board.set_phase(STOPPABLE)
            self._rank.board.show(Stage("program", "running", is_told=False))
        program = start(self._take)
        code = program.wait(lambda: self._look(program))
        self._show()
        error = self._error(code, program, time.time())
        if error is not None:
            self._tell_others(error)
        context = self._rank.member.context
        self._node.note_end(context.local_rank, well=error is None and code == 0)
        if context.is_keeper:
            self._keep(error)
        if error is None and (self._request is None or self._request.regroup_reason is None):
            return self._ended(code)
        # A worker that raises ends those of all ranks, which may still store a checkpoint.
        self._wait_for_keepers()
        if error is not None:
            raise error
        return self._ended(code)

    def _tell_others(self, error: RayscribeError) -> None:
        """Has the programs of other ranks ended, unless they end as the one that has failed first."""
        board, end_s = self._rank.board, time.monotonic() + FOLLOW_S
        # Of a connection that broke the other end says why, if it lives.
        while isinstance(error, FollowingError) and board.posted(FAILED) is None and time.monotonic() < end_s:
            time.sleep(POLL_S / 5)
        if board.posted(FAILED) is None:
            board.try_post(FAILED, str(error))

    def _keep(self, error: RayscribeError | None) -> None:
        """Stores what the programs of this node have left, once all have ended."""
        context, board = self._rank.member.context, self._rank.board
        while not self._node.have_all("ended", context.local_world_size):
            time.sleep(POLL_S / 5)
        # One that a signal or an error has ended may have left something incomplete, also where it was asked to end.
        ended_well = self._node.have_all("well", context.local_world_size)
        try:
            if context.node_number in self._shared:
                board.post(ENDED.format(context.node_number), ended_well)
            elif self._shared:
                ended_well = all([ended_well, *(self._rank._wait_for(ENDED.format(node)) for node in self._shared)])
            if self._sync is not None:
                self._sync.finish(ended_well=ended_well)
        except FencedError:
            raise
        except Exception as lost:
            # The program's own error is what the run ends with.
            if error is None:
                raise
            self._rank._say(f"not all of its output could be stored: {lost}")
        finally:
            board.try_post(KEPT.format(context.node_number), True)

    def _wait_for_keepers(self) -> None:
        end_s = time.monotonic() + KEPT_TIMEOUT_S
        left = set(range(self._rank.member.context.node_count))
        while left and time.monotonic() < end_s:
            left = {node for node in left if self._rank.board.posted(KEPT.format(node)) is None}
            time.sleep(POLL_S / 5)

    def _ended(self, code: int) -> str | None:
        if self._request is None:
            return None
        found = newest(Journal(self._rank.folder).read().checkpoints)
        left = f"{found.name} is in {self._rank.folder.url}" if found is not None else "no checkpoint was made"
        if self._request.regroup_reason is not None:
            raise RegroupError(f"{self._request.regroup_reason}: the workers left; {left}")
        how = " (killed: it had not ended in time)" if self._was_killed else ""
        return f"stopped; the program ended with code {code}{how}; {left}"

    def _error(self, code: int, program: Program, ended_s: float) -> RayscribeError | None:
        """What a code means; None: the program ended well, or as it was asked to."""
        if code != 0 and self._request is None and self._failure is None:
            self._failure = self._rank.board.posted(FAILED)
        if self._failure is not None:
            return FollowingError(f"{self._rank.name}: ended, since another rank failed: {self._failure}")
        if code == 0 or self._request is not None:
            return None
        last = _indented(program.last_lines)
        has_others = self._rank.member.context.world_size > 1
        if has_others and is_broken_connection(last):
            return FollowingError(f"{self._rank.name}: the program lost its connection to another rank:\n{last}")
        if code < 0:
            advice = "; its node may have run out of memory: check its kernel log" if -code == SIGKILL else ""
            name = next((known.name for known in Signals if known == -code), f"signal {-code}")
            return LostWorkerError(f"{self._rank.name}: the program ended by {name}{advice}:\n{last}")
        text = f"{self._rank.name}: the program {self._script.command[0]} ended with exit code {code}:\n{last}"
        return ScriptError.of(text, code, ended_s, final=self._script.max_restarts == 0)

    def _take(self, line: str) -> None:
        # To this worker's own log, too.
        print(line, flush=True)
        self._lines.append(line)

    def _show(self) -> None:
        left_out = len(self._lines) - MOST_LINES
        if left_out > 0:
            note = f"({left_out} lines are left out here; the log of this rank has them)"
            self._lines = [note, *self._lines[-MOST_LINES:]]
        if self._lines:
            self._rank.board.say_all([f"[{self._rank.name}] {line}" for line in self._lines])
        self._lines = []

    def _look(self, program: Program) -> None:
        """Shows new lines, and ends the program where that is asked for."""
        now_s = time.monotonic()
        if now_s - self._shown_s >= SHOW_INTERVAL_S:
            self._shown_s = now_s
            self._show()
        if now_s - self._polled_s >= POLL_S:
            self._polled_s = now_s
            if self._deadline_s is None:
                self._ask_board(now_s)
            if self._deadline_s is not None:
                program.terminate()
        if self._deadline_s is not None and now_s >= self._deadline_s and not self._was_killed:
            self._was_killed = True
            program.kill()

    def _ask_board(self, now_s: float) -> None:
        """Finds out whether the program is to end, and by when."""
        self._request = self._rank.board.end_request()
        self._failure = self._rank.board.posted(FAILED) if self._request is None else None
        if self._request is not None or self._failure is not None:
            grace_s = self._script.stop_grace_s if self._request is not None else FOLLOW_S
            self._deadline_s = now_s + grace_s
            self._rank._say(f"{SIGTERM.name} to the program, which may take {grace_s:g} s to end")


def _indented(lines: Iterable[str]) -> str:
    return "\n".join(f"  {line[:LONGEST_SHOWN]}" for line in lines)


def _network() -> dict[str, str]:
    """Which interface gloo uses, unless the user has chosen one."""
    import ray  # noqa: PLC0415

    name = interface_of(ray.util.get_node_ip_address())
    return {GLOO_INTERFACE: name} if name is not None and GLOO_INTERFACE not in os.environ else {}
