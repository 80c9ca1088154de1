"""One checkpoint of a program that writes on several nodes: each node's keeper stores what its own ranks have written.

As those of trainings do, see `checkpoints.collect_parts`. But these know by the step alone what to store and whose it
is. Nodes of a program have to tell each other, and ask each second, which is for the board of the group, and not for a
bucket:

    outputs/wanted                         main node: the checkpoints that are to be stored, all so far
    outputs/names/<checkpoint>/<n>         node n: the files that it has, and the main node has not
    outputs/incomplete/<checkpoint>/<n>    node n: its program was killed, and may have left its part half written
    outputs/end                            main node: nothing more is wanted

A file that several nodes have is stored by the first of them. Only when all parts are stored is a checkpoint entered.
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
# How long the main node waits for a part: shards of large models take minutes to upload.
PART_TIMEOUT_S = 900.0
# After this wait the node is looked for, and the wait is said.
LOOK_S = 10.0


@dataclass(frozen=True, kw_only=True)
class NodeOutput:
    """The output folder of a program on one node, among those of its worker group.

    Attributes:
        folder: Absolute; it need not be there yet.
        layouts: Of the checkpoints to look for.
        run_folder: Of the run.
        attempt: Its number.
        board: Of this worker group.
        node: Number of this node; 0 is the main node.
        others: Other nodes that write parts of the same checkpoints, into folders of their own.
        say: Prints a line for the user.
        is_gone: Whether a node has ended or is lost, so that nothing more comes from it.
        watch: Of what is in the folder.
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
    """A checkpoint that is to be stored.

    Attributes:
        name: In the run folder, which no other checkpoint has.
        path: Below the output folder.
        names: The files that the main node has of it.
    """

    name: str
    path: str
    names: frozenset[str]


class PartCollector:
    """The main node's side."""

    def __init__(self, output: NodeOutput, *, timeout_s: float = PART_TIMEOUT_S):
        self._output, self._timeout_s = output, timeout_s
        self._wanted: tuple[Wanted, ...] = ()
        self._since_s: dict[str, float] = {}

    def announce(self, wanted: Wanted) -> None:
        """Asks the other nodes for their parts."""
        if self._output.others and wanted not in self._wanted:
            self._wanted = (*self._wanted, wanted)
            self._output.board.post(WANTED, self._wanted)

    def collect(self, wanted: Wanted, target: Storage) -> Files:
        """The files of all other nodes, once they are stored in the folder of the checkpoint.

        Raises:
            StorageError: a node has not stored its part in time.
            ChangedError: the program ended on a node before its part was complete, or the node is lost.
        """
        output = self._output
        # Also where it is tried again.
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
                    "see its lines above, and whether it reaches the storage"
                )
            if now_s > look_s:
                look_s = now_s + LOOK_S
                # It may have stored its part before it ended.
                if output.is_gone(node) and not target.exists(PART.format(node)):
                    raise ChangedError(f"{wanted.path}: node {node} ended or was lost before it had stored its part")
                output.say(f"{wanted.path}: waits for node {node} to store its part")

        return collect_parts(target, output.others, wait)

    def end(self) -> None:
        if self._output.others:
            self._output.board.post(END, True)


class PartServer:
    """Another node's side."""

    def __init__(self, output: NodeOutput):
        self._output, self._board = output, output.board
        self._stored: set[str] = set()

    def serve(self, *, has_ended: bool, ended_well: bool = False) -> None:
        """Stores this node's part of each checkpoint that is wanted, if it is complete: the program is done with it.

        Args:
            has_ended: Whether the program has ended on this node, so that it writes nothing more.
            ended_well: Whether it has come to its own end there, so that it has left nothing incomplete.

        Raises:
            StorageError: a part could not be stored; it stays wanted.
        """
        for wanted in self._board.posted(WANTED) or ():
            if wanted.name not in self._stored and self._is_stored(wanted, has_ended, ended_well):
                self._stored.add(wanted.name)

    def is_done(self) -> bool:
        """Whether the main node wants nothing more."""
        return self._board.posted(END) is not None

    def _is_stored(self, wanted: Wanted, has_ended: bool, ended_well: bool) -> bool:
        """Stores this node's part, or says that there will be none; False where it is tried again."""
        output, path = self._output, self._output.folder / wanted.path
        signature, unchanged_s = output.watch.look(path)
        if not has_ended and unchanged_s < MARKED_STABLE_S:
            return False
        own = {f"{wanted.path}/{name}" if name else wanted.path for name, _, _ in signature} - wanted.names
        if own and has_ended and not ended_well and not shows_its_end(path):
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
