"""Stores a checkpoint of a program with parts on several nodes; each node's keeper stores the files of its own ranks.

Parts are collected as for trainings, see `checkpoints.collect_parts`. But while the step tells a training's nodes what
to store, a program's nodes have to tell each other. Since they poll every second, they use the board of the group
instead of a bucket:

    outputs/wanted                         main node: all checkpoints so far that are to be stored
    outputs/names/<checkpoint>/<n>         node n: its files that the main node does not have
    outputs/incomplete/<checkpoint>/<n>    node n: its program was killed, and may have left its part incomplete
    outputs/end                            main node: no further parts are wanted

A file that several nodes have is stored by the first of them. A checkpoint is added only when all parts are stored.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from trainers.errors import StorageError
from trainers.run_folder.checkpoints import PART, Files, collect_parts, enter_part, store_files
from trainers.run_folder.layout import CHECKPOINTS, RunFolder
from trainers.scripts.board import Board
from trainers.scripts.outputs.layouts import MARKED_STABLE_S, CheckpointLayout, Watch, shows_its_end
from trainers.scripts.outputs.snapshot import ChangedError, Snapshot
from trainers.storage import Storage

WANTED, END = "outputs/wanted", "outputs/end"
NAMES, INCOMPLETE = "outputs/names/{}/{}", "outputs/incomplete/{}/{}"
# Timeout of the main node for a part, since shards of large models take minutes to upload.
PART_TIMEOUT_S = 900.0
# After this wait, the main node checks that the other node is alive, and prints a line.
LOOK_S = 10.0


@dataclass(frozen=True, kw_only=True)
class NodeOutput:
    """The output folder of a program on one node of its worker group.

    Attributes:
        folder: Absolute path of the folder, which need not exist yet.
        node: Number of this node; 0 is the main node.
        others: Other nodes that write parts of the same checkpoints, into folders of their own.
        say: Prints a line for the user.
        is_gone: Returns True if a node has ended or is lost, so that no further parts come from it.
    """

    folder: Path
    layouts: Sequence[CheckpointLayout]
    run_folder: RunFolder
    attempt: int
    board: Board
    node: int
    others: Sequence[int]
    say: Callable[[str], None]
    is_gone: Callable[[int], bool]
    watch: Watch = field(default_factory=Watch)


@dataclass(frozen=True)
class Wanted:
    """A checkpoint to store, by its unique name in the run folder; `names` are its files that the main node has."""

    name: str
    path: str
    names: frozenset[str]


class PartCollector:
    """Collects parts on the main node."""

    def __init__(self, output: NodeOutput, *, timeout_s: float = PART_TIMEOUT_S):
        self._output, self._timeout_s = output, timeout_s
        self._wanted: tuple[Wanted, ...] = ()
        self._since_s: dict[str, float] = {}

    def announce(self, wanted: Wanted) -> None:
        """Requests the parts of the other nodes."""
        if self._output.others and wanted not in self._wanted:
            self._wanted = (*self._wanted, wanted)
            self._output.board.post(WANTED, self._wanted)

    def collect(self, wanted: Wanted, target: Storage) -> Files:
        """Returns the files of all other nodes, once they are stored in the folder of the checkpoint.

        Raises:
            StorageError: a node has not stored its part in time.
            ChangedError: the program ended on a node before its part was complete, or the node is lost.
        """
        output = self._output
        # The timeout includes the time of earlier tries.
        end_s = self._since_s.setdefault(wanted.name, time.monotonic()) + self._timeout_s
        look_s = time.monotonic() + LOOK_S

        def wait(node: int) -> None:
            nonlocal look_s
            now_s = time.monotonic()
            if output.board.posted(INCOMPLETE.format(wanted.name, node)):
                raise ChangedError(f"{wanted.path}: the program ended on node {node} before its part was complete")
            if now_s > end_s:
                raise StorageError(
                    f"{wanted.path}: node {node} has not stored its part within {self._timeout_s:.0f} s; "
                    "check its lines above, and its connection to the storage"
                )
            if now_s > look_s:
                look_s = now_s + LOOK_S
                # The node may have stored its part before it ended.
                if output.is_gone(node) and not target.exists(PART.format(node)):
                    raise ChangedError(f"{wanted.path}: node {node} ended or was lost before it had stored its part")
                output.say(f"{wanted.path}: waits for node {node} to store its part")

        return collect_parts(target, output.others, wait)

    def end(self) -> None:
        if self._output.others:
            self._output.board.post(END, True)


class PartServer:
    """Stores parts on the other nodes."""

    def __init__(self, output: NodeOutput):
        self._output, self._board = output, output.board
        self._stored: set[str] = set()

    def serve(self, *, ended_well: bool | None = None) -> None:
        """Stores this node's part of each wanted checkpoint, if it is complete; see `CheckpointKeeper.keep_new`.

        Raises:
            StorageError: a part could not be stored; the next call retries it.
        """
        for wanted in self._board.posted(WANTED) or ():
            if wanted.name not in self._stored and self._is_stored(wanted, ended_well):
                self._stored.add(wanted.name)

    def is_done(self) -> bool:
        """Returns True if the main node wants no further parts."""
        return self._board.posted(END) is not None

    def _is_stored(self, wanted: Wanted, ended_well: bool | None) -> bool:
        """Stores this node's part, or reports that it is incomplete; returns False if it has to be retried."""
        output, path = self._output, self._output.folder / wanted.path
        signature, unchanged_s = output.watch.look(path)
        if ended_well is None and unchanged_s < MARKED_STABLE_S:
            return False
        own = {f"{wanted.path}/{name}" if name else wanted.path for name, _, _ in signature} - wanted.names
        if own and ended_well is False and not shows_its_end(path):
            self._board.post(INCOMPLETE.format(wanted.name, output.node), True)
            return True
        try:
            with closing(Snapshot(output.folder, wanted.path, signature)) as snapshot:
                names = snapshot.files - wanted.names
                self._board.post(NAMES.format(wanted.name, output.node), names)
                for node in (each for each in output.others if each < output.node):
                    if (of_other := self._board.posted(NAMES.format(wanted.name, node))) is None:
                        return False
                    names -= of_other
                target = output.run_folder.storage.sub(f"{CHECKPOINTS}/{wanted.name}")
                part = store_files(snapshot.root, names, target)
                snapshot.check()
        except ChangedError:
            return False
        enter_part(target, output.node, part)
        return True
