"""Runs one rank of a program in a Ray worker: prepares the node, runs the rank, keeps its output, reports its end."""

import os
import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from signal import SIGKILL, SIGTERM, Signals
from typing import Any

import ray

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
from trainers.scripts.accelerators import HPU_MODES, accelerator_of, check_build
from trainers.scripts.backend import GroupMember, release_port, this_member
from trainers.scripts.board import CoordinatorBoard
from trainers.scripts.inputs.fetch import InputFetcher
from trainers.scripts.inputs.placeholders import Known, resolve
from trainers.scripts.inputs.prepare import key_of, prepare_data
from trainers.scripts.node_folder import INPUTS, NodeFolder, ScriptTask
from trainers.scripts.outputs.checkpoint_keeper import NewestAndBest
from trainers.scripts.outputs.layouts import layouts_for
from trainers.scripts.outputs.output_folder import LEFT_OUT, output_folder_of, without_overwriting
from trainers.scripts.outputs.parts import NodeOutput
from trainers.scripts.outputs.progress import ScriptProgress, read_progress
from trainers.scripts.outputs.restore import give_back_files, restore
from trainers.scripts.outputs.shared_files import program_variables
from trainers.scripts.outputs.sync import OutputSync, sharing_nodes
from trainers.scripts.program import DATA, Program, program_environment, program_words
from trainers.storage.own_folder import own_temporary_folder

POLL_S = 1.0
SHOW_INTERVAL_S = 0.5
# Maximum number of lines that a rank shows at a time in the driver's log; the rank's own log has all lines.
MOST_LINES = 500
# Maximum length of each last line in an error. Ray keeps 20,000 characters of a job's log, which must include the code.
LONGEST_SHOWN = 500
# Timeout for a program to end after the program of another rank has failed.
FOLLOW_S = 5.0
# Time for which a failed rank waits until all nodes have stored the remaining files of their programs.
KEPT_TIMEOUT_S = 1800.0
START, FAILED, KEPT = "start", "failed", "kept-{}"
# Topics: a node's keeper is ready for its programs; the programs of a node that shares the main node's output folder
# have ended.
READY, ENDED = "node-{}", "ended-{}"


def run_program_per_worker(loop_config: dict[str, Any]) -> str | None:
    """Runs the rank of this worker; returns the driver's message if the run was stopped, None if it ended well.

    `loop_config` has `task` (a ScriptTask), `coordinator` and `folder` (the run folder).
    """
    resolve_secrets(os.environ)
    task, folder, member = loop_config["task"], loop_config["folder"], this_member()
    script = task.config.script
    for words in (script.command, script.prepare or (), [f"{name}={value}" for name, value in script.env.items()]):
        # Called before any log begins, since a log reads the secrets when it begins.
        add_secrets(os.environ, secret_references(words, os.environ))
    if member.context.is_keeper:
        finish_logs(folder)
    with worker_log(folder, task.attempt, rank=member.context.rank, group=member.group):
        return _Rank(task, folder, member, CoordinatorBoard(loop_config["coordinator"], member.group)).run()


@dataclass
class _Rank:
    """One rank of a group; its program ends by itself, on request, or because another rank has failed.

    Attributes:
        sync: Keeps the files of this node's programs; None if another rank or node keeps them.
        shared: The nodes that share the main node's output folder, see `sharing_nodes`; known only to keepers.
    """

    task: ScriptTask
    folder: RunFolder
    member: GroupMember
    board: CoordinatorBoard
    sync: OutputSync | None = None
    shared: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        self.context, self.script = self.member.context, self.task.config.script
        self.is_main, self.name = self.context.rank == 0, f"rank {self.context.rank}"
        self.node = NodeFolder.of(self.task, self.folder, self.member, os.environ)
        self.writer = GroupWriter.of(self.folder, self.task.attempt, self.member.group)
        # The state of the running program.
        self._lines: list[str] = []
        self._polled_s = self._shown_s = 0.0
        self._request: EndRequest | None = None
        self._failure: str | None = None
        self._deadline_s: float | None = None
        self._was_killed = False

    def run(self) -> str | None:
        """Runs the rank until it ends, see `run_program_per_worker`; raises the error that ended it."""
        if self.is_main:
            self._open_group()
        state: State = self.wait_for(START)
        with self.node.made() if self.context.is_keeper else nullcontext():
            words, environment = self._command(state)
            output = self._prepare_output(words, environment) if self.context.is_keeper else None
            if self.is_main and output is not None and output.others:
                environment |= program_variables(output.folder, self.node.requests, environment)
            with StatusWriter(self.folder, self.task.attempt if self.is_main else None) as status:
                self._begin_keeping(output, state, status)
                self._await_node()
                status.update(Phase.TRAINING, **restarts_of(state, self.task.attempt))
                started = program_words(self.script, words, self.node.work, self.context.local_rank)
                release_port()
                stopped = self._follow(lambda show: Program(started, self.node.work, environment, show))
            if self.is_main and stopped is None:
                self._write_result(read_progress(output.folder) if output is not None else ScriptProgress())
            return stopped

    def _open_group(self) -> None:
        state = self.writer.open(self.context.world_size, self.board.restart_reason())
        sweep(self.writer)
        self.board.begin(self.member.nodes)
        self.board.post(START, state)

    def wait_for(self, topic: str) -> Any:
        """Waits for the value of a topic; if the rank that posts it fails, Ray ends this rank, too."""
        while (value := self.board.posted(topic)) is None:
            time.sleep(POLL_S / 5)
        return value

    def _command(self, state: State) -> tuple[list[str], dict[str, str]]:
        """Returns the command and its environment, with placeholders replaced."""
        script, context = self.script, self.context
        data = self._prepared() if script.prepare is not None else None
        words, given = self._resolved(script.command, script.env, data)
        accelerator = accelerator_of(self.task.config.scaling)
        given = {**HPU_MODES[script.hpu_mode], **accelerator.visible(context.devices), **given}
        if data is not None:
            given[DATA] = str(data)
        restarts = restarts_of(state, self.task.attempt).get("restarts", 0)
        torchrun = context.environment(self.folder.name, restarts, script.max_restarts)
        environment = program_environment(os.environ, {**_network(), **given}, torchrun, self.node.work)
        if not state.checkpoints or without_overwriting(words) == words:
            return words, environment
        if self.is_main:
            self.board.show(LEFT_OUT)
        return without_overwriting(words), environment

    def _resolved(
        self, words: Sequence[str], variables: Mapping[str, str], data: Path | None
    ) -> tuple[list[str], dict[str, str]]:
        """Returns words and variables with placeholders replaced by their values on this node."""
        options, prefixes = self.task.config.run.storage_options, self.script.path_prefix
        fetch = InputFetcher(own_temporary_folder(INPUTS), options, prefixes, self.say)
        words, variables = resolve(words, variables, Known(self.folder.url, self.task.attempt, data), fetch)
        filled = with_secrets([*words, *(f"{name}={value}" for name, value in variables.items())], os.environ)
        values = (each.partition("=")[2] for each in filled[len(words) :])
        return filled[: len(words)], dict(zip(variables, values, strict=True))

    def _prepared(self) -> Path:
        """Returns the folder that `script.prepare` has written, on this node."""
        script, node, topic = self.script, self.node, f"data-{self.context.node_number}"
        command = script.prepare or ()
        if not self.context.is_keeper:
            self.wait_for(topic)
            return node.data

        def run(into: Path) -> None:
            self.say(f"preparing data, once for this run: {' '.join(command)}")
            words, known = self._resolved(command, {**script.env, DATA: str(into)}, into)
            variables = program_environment(os.environ, known, {}, node.work)
            started = program_words(script.model_copy(update={"command": tuple(words)}), words, node.work)
            program = Program(started, node.work, variables, self.say)
            if code := program.wait(lambda: None):
                raise ScriptError.of(
                    f"script.prepare: {words[0]} ended with exit code {code}:\n{_indented(program.last_lines)}",
                    code if code > 0 else 128 - code,
                    time.time(),
                    final=True,
                )

        key = key_of(script, self.task.package)
        prepare_data(key, self.folder, node.data, run, is_main=self.is_main, board=self.board, say=self.say)
        self.board.post(topic, True)
        return node.data

    def _prepare_output(self, words: list[str], environment: Mapping[str, str]) -> NodeOutput | None:
        """Returns the output folder that this node keeps; None if it is not known, or the main node keeps it."""
        script, context, accelerator = self.script, self.context, accelerator_of(self.task.config.scaling)
        if accelerator.resource is not None and script.is_python:
            check_build(program_words(script, words, self.node.work)[0], accelerator, platform.node(), environment)
        given = script.sync_dir
        folder = self.node.work / given if given is not None else output_folder_of(words, self.node.work)
        self.shared = sharing_nodes(
            folder, self.member.group, context.node_number, context.node_count, self.board, self.wait_for
        )
        if folder is None or context.node_number in self.shared:
            return None
        nodes = tuple(dict.fromkeys(self.member.nodes))

        def is_gone(node: int) -> bool:
            return self.board.posted(KEPT.format(node)) is not None or not self.board.is_alive(nodes[node])

        return NodeOutput(
            folder=folder,
            layouts=layouts_for(script.checkpoints),
            run_folder=self.folder,
            attempt=self.task.attempt,
            board=self.board,
            node=context.node_number,
            others=tuple(node for node in range(1, context.node_count) if node not in self.shared),
            say=self.say,
            is_gone=is_gone,
        )

    def _begin_keeping(self, output: NodeOutput | None, state: State, status: StatusWriter) -> None:
        """Restores the files from which the program continues, and keeps its new files from now on."""
        if output is None:
            return
        retention, given_back = NewestAndBest(self.script.num_to_keep), frozenset[str]()
        found = restore(self.folder, state, output.folder, output.layouts, retention=retention, say=self.say)
        if found is not None:
            given_back = give_back_files(self.folder, self.task.attempt, output.folder, self.node.localize)
            if self.is_main:
                self.board.show(f"script: continues from {found.path} in {output.folder}")

        def show(progress: ScriptProgress) -> None:
            known = {"step": progress.step, "max_steps": progress.max_steps, "loss": progress.loss, "wer": progress.wer}
            status.update(Phase.TRAINING, **{name: value for name, value in known.items() if value is not None})

        self.sync = OutputSync(output, self.writer if self.is_main else None, retention, show, self.node)
        # Started before any rank of the node, since files that exist now are not the program's output.
        self.sync.start(given_back)

    def _await_node(self) -> None:
        """Waits for the keeper of this node and, if the node shares the main node's folder, for that node's keeper."""
        number = self.context.node_number
        if self.context.is_keeper:
            if number in self.shared:
                self.wait_for(READY.format(0))
            self.board.post(READY.format(number), True)
        self.wait_for(READY.format(number))

    def _write_result(self, progress: ScriptProgress) -> None:
        """Writes the last metrics of the program, which the driver records as the result of the run."""
        outputs = self.folder.sub(self.writer.group.outputs)
        outputs.write_json(RESULT, {"trainer": "script", "attempt": self.task.attempt, "metrics": asdict(progress)})

    def say(self, line: str) -> None:
        self.board.show(f"[{self.name}] {line}")

    def _follow(self, start: Callable[[Callable[[str], None]], Program]) -> str | None:
        """Follows the program until it ends; returns the message if a stop was requested, None if it ended by itself.

        Raises:
            ScriptError: the program failed by itself.
            LostWorkerError: a signal killed the program, or it ended because another rank's program failed.
            RegroupError: the program was requested to end, because the run continues with other workers.
        """
        if self.is_main:
            self.board.set_phase(STOPPABLE)
            self.board.show(Stage("program", "running", is_told=False))
        program = start(self._take)
        code = program.wait(lambda: self._look(program))
        self._show()
        error = self._error(code, program, time.time())
        if error is not None:
            self._tell_others(error)
        self.node.note_end(self.context.local_rank, well=error is None and code == 0)
        if self.context.is_keeper:
            self._keep(error)
        if error is None and (self._request is None or self._request.regroup_reason is None):
            return self._ended(code)
        # If this worker raises an error, Ray ends the workers of all ranks, which may still be storing a checkpoint.
        self._wait_for_keepers()
        if error is not None:
            raise error
        return self._ended(code)

    def _tell_others(self, error: RayscribeError) -> None:
        """Makes the programs of other ranks end, unless the failure that caused this one is posted first."""
        end_s = time.monotonic() + FOLLOW_S
        # After a broken connection, the other end, if alive, posts the cause.
        while isinstance(error, FollowingError) and self.board.posted(FAILED) is None and time.monotonic() < end_s:
            time.sleep(POLL_S / 5)
        if self.board.posted(FAILED) is None:
            self.board.try_post(FAILED, str(error))

    def _keep(self, error: RayscribeError | None) -> None:
        """Stores the remaining files of this node's programs, once all of them have ended."""
        number = self.context.node_number
        while not self.node.have_all("ended", self.context.local_world_size):
            time.sleep(POLL_S / 5)
        # A program that a signal or an error ended may have left incomplete files, even if it was requested to end.
        ended_well = self.node.have_all("well", self.context.local_world_size)
        try:
            if number in self.shared:
                self.board.post(ENDED.format(number), ended_well)
            elif self.shared:
                ended_well = all([ended_well, *(self.wait_for(ENDED.format(node)) for node in self.shared)])
            if self.sync is not None:
                self.sync.finish(ended_well=ended_well)
        except FencedError:
            raise
        except Exception as lost:
            # The run ends with the program's own error.
            if error is None:
                raise
            self.say(f"not all output of the program could be stored: {lost}")
        finally:
            self.board.try_post(KEPT.format(number), True)

    def _wait_for_keepers(self) -> None:
        end_s = time.monotonic() + KEPT_TIMEOUT_S
        left = set(range(self.context.node_count))
        while left and time.monotonic() < end_s:
            left = {node for node in left if self.board.posted(KEPT.format(node)) is None}
            time.sleep(POLL_S / 5)

    def _ended(self, code: int) -> str | None:
        if self._request is None:
            return None
        found = newest(Journal(self.folder).read().checkpoints)
        left = f"{found.name} is in {self.folder.url}" if found is not None else "no checkpoint was made"
        if self._request.regroup_reason is not None:
            raise RegroupError(f"{self._request.regroup_reason}: the workers left; {left}")
        how = " (killed: it had not ended in time)" if self._was_killed else ""
        return f"stopped; the program ended with code {code}{how}; {left}"

    def _error(self, code: int, program: Program, ended_s: float) -> RayscribeError | None:
        """Returns the error for an exit code; None if the program ended well, or as requested."""
        if code != 0 and self._request is None and self._failure is None:
            self._failure = self.board.posted(FAILED)
        if self._failure is not None:
            return FollowingError(f"{self.name}: ended, since another rank failed: {self._failure}")
        if code == 0 or self._request is not None:
            return None
        last = _indented(program.last_lines)
        has_others = self.context.world_size > 1
        if has_others and is_broken_connection(last):
            return FollowingError(f"{self.name}: the program lost its connection to another rank:\n{last}")
        if code < 0:
            advice = "; its node may have run out of memory: check its kernel log" if -code == SIGKILL else ""
            name = next((known.name for known in Signals if known == -code), f"signal {-code}")
            return LostWorkerError(f"{self.name}: the program ended by {name}{advice}:\n{last}")
        text = f"{self.name}: the program {self.script.command[0]} ended with exit code {code}:\n{last}"
        return ScriptError.of(text, code, ended_s, final=self.script.max_restarts == 0)

    def _take(self, line: str) -> None:
        # Prints to this worker's own log, too.
        print(line, flush=True)
        self._lines.append(line)

    def _show(self) -> None:
        left_out = len(self._lines) - MOST_LINES
        if left_out > 0:
            note = f"({left_out} lines are left out here; the log of this rank has them)"
            self._lines = [note, *self._lines[-MOST_LINES:]]
        if self._lines:
            self.board.say_all([f"[{self.name}] {line}" for line in self._lines])
        self._lines = []

    def _look(self, program: Program) -> None:
        """Shows new lines, and ends the program if requested."""
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
        """Checks whether the program has to end, and by when."""
        self._request = self.board.end_request()
        self._failure = self.board.posted(FAILED) if self._request is None else None
        if self._request is not None or self._failure is not None:
            grace_s = self.script.stop_grace_s if self._request is not None else FOLLOW_S
            self._deadline_s = now_s + grace_s
            self.say(f"sent {SIGTERM.name} to the program, which has {grace_s:g} s to end")


def _indented(lines: Iterable[str]) -> str:
    return "\n".join(f"  {line[:LONGEST_SHOWN]}" for line in lines)


def _network() -> dict[str, str]:
    """Returns the environment variable of gloo's network interface; empty if the user has set it, or it is unknown."""
    name = interface_of(ray.util.get_node_ip_address())
    return {GLOO_INTERFACE: name} if name is not None and GLOO_INTERFACE not in os.environ else {}
