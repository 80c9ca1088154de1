"""One checkpoint of a program that writes on several nodes: each node's keeper stores what its own ranks have written.

On the board of the group, in this order:

    outputs/wanted                    main node: the checkpoints that are to be stored, all so far
    outputs/names/<checkpoint>/<n>    node n: the files that it has, and the main node has not
    outputs/part/<checkpoint>/<n>     node n: size and SHA-256 of those that it has stored, or that they are incomplete
    outputs/end                       main node: nothing more is wanted

A file that several nodes have is stored by the first of them. Only when all parts are posted is a checkpoint entered.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainers.errors import StorageError
from trainers.run_folder.checkpoints import store_files
from trainers.run_folder.layout import CHECKPOINTS, RunFolder
from trainers.scripts.board import Board
from trainers.scripts.outputs.layouts import MARKED_STABLE_S, Watch, shows_its_end
from trainers.scripts.outputs.snapshot import ChangedError, Snapshot

WANTED, END = "outputs/wanted", "outputs/end"
# In place of a part that a program which was killed may have left half written.
INCOMPLETE = "incomplete"
POLL_S = 0.2
# How long the main node waits for a part: shards of large models take minutes to upload.
PART_TIMEOUT_S = 900.0
# After this wait the node is looked for, and the wait is said.
LOOK_S = 10.0


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

    def __init__(
        self,
        board: Board,
        others: Sequence[int],
        say: Callable[[str], None],
        is_gone: Callable[[int], bool],
        *,
        timeout_s: float = PART_TIMEOUT_S,
    ):
        self._board, self._others, self._timeout_s = board, others, timeout_s
        self._say, self._is_gone = say, is_gone
        self._wanted: tuple[Wanted, ...] = ()
        self._since_s: dict[str, float] = {}

    def announce(self, wanted: Wanted) -> None:
        """Asks the other nodes for their parts."""
        if self._others and wanted not in self._wanted:
            self._wanted = (*self._wanted, wanted)
            self._board.post(WANTED, self._wanted)

    def collect(self, wanted: Wanted) -> dict[str, dict[str, Any]]:
        """The files of all other nodes, once they are stored.

        Raises:
            StorageError: a node has not stored its part in time.
            ChangedError: the program ended on a node before its part was complete, or the node is lost.
        """
        files: dict[str, dict[str, Any]] = {}
        # Also where it is tried again.
        end_s = self._since_s.setdefault(wanted.name, time.monotonic()) + self._timeout_s
        for node in self._others:
            part = self._await_part(wanted, node, end_s)
            if part == INCOMPLETE:
                raise ChangedError(f"{wanted.path}: the program ended on node {node} before its part was complete")
            files |= part
        return files

    def _await_part(self, wanted: Wanted, node: int, end_s: float) -> Any:
        look_s = time.monotonic() + LOOK_S
        while (part := self._board.posted(_part(wanted, node))) is None:
            now_s = time.monotonic()
            if now_s > end_s:
                raise StorageError(
                    f"{wanted.path}: node {node} has not stored its part within {self._timeout_s:.0f} s; "
                    "see its lines above, and whether it reaches the storage"
                )
            if now_s > look_s:
                look_s = now_s + LOOK_S
                # It may have posted its part before it ended.
                if self._is_gone(node) and self._board.posted(_part(wanted, node)) is None:
                    raise ChangedError(f"{wanted.path}: node {node} ended or was lost before it had stored its part")
                self._say(f"{wanted.path}: waits for node {node} to store its part")
            time.sleep(POLL_S)
        return part

    def end(self) -> None:
        if self._others:
            self._board.post(END, True)


class PartServer:
    """Another node's side."""

    def __init__(
        self, folder: Path, run_folder: RunFolder, board: Board, node: int, others: Sequence[int], watch: Watch
    ):
        self._folder, self._run_folder, self._board, self._node = folder, run_folder, board, node
        self._before, self._watch = [other for other in others if other < node], watch
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
            if wanted.name not in self._stored:
                self._store(wanted, has_ended=has_ended, ended_well=ended_well)

    def is_done(self) -> bool:
        """Whether the main node wants nothing more."""
        return self._board.posted(END) is not None

    def _store(self, wanted: Wanted, *, has_ended: bool, ended_well: bool) -> None:
        path = self._folder / wanted.path
        signature, unchanged_s = self._watch.look(path)
        if not has_ended and unchanged_s < MARKED_STABLE_S:
            return
        own = {f"{wanted.path}/{name}" if name else wanted.path for name, _, _ in signature} - wanted.names
        if own and has_ended and not ended_well and not shows_its_end(path):
            self._board.post(_part(wanted, self._node), INCOMPLETE)
            self._stored.add(wanted.name)
            return
        try:
            snapshot = Snapshot(self._folder, wanted.path, signature)
        except ChangedError:
            return
        try:
            names = snapshot.files - wanted.names
            self._board.post(_names(wanted, self._node), names)
            of_others: set[str] = set()
            for node in self._before:
                lower = self._board.posted(_names(wanted, node))
                if lower is None:
                    return
                of_others |= lower
            target = self._run_folder.storage.sub(f"{CHECKPOINTS}/{wanted.name}")
            part = store_files(snapshot.root, names - of_others, target)
            snapshot.check()
        except ChangedError:
            return
        finally:
            snapshot.remove()
        self._board.post(_part(wanted, self._node), part)
        self._stored.add(wanted.name)


def _names(wanted: Wanted, node: int) -> str:
    return f"outputs/names/{wanted.name}/{node}"


def _part(wanted: Wanted, node: int) -> str:
    return f"outputs/part/{wanted.name}/{node}"
