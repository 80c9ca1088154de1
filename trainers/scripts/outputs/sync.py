"""Syncs a program's output folder while it runs, in threads of the first worker of each node.

The main node keeps checkpoints and reports progress; other nodes store their parts of the same checkpoints. Every node
keeps small files, below the attempt's own folder. Files that the main process's program writes before a barrier are on
the other nodes after it (`shared_files.py`):

    attempts/<k>/outputs/                 small files of the main node, while the program runs
    attempts/<k>/outputs/node-<n>/        small files of node n, and at the end all of its files
    attempts/<k>/outputs-<group>/files/   all files of the main node's output folder besides checkpoints, at the end

A storage that fails does not affect the program: the error is printed, and the upload retried.
"""

import shutil
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from trainers.errors import FencedError, RayscribeError, StorageError
from trainers.run_folder.checkpoints import RetentionPolicy
from trainers.run_folder.fencing import GroupWriter
from trainers.run_folder.layout import ATTEMPTS
from trainers.scripts.board import Board
from trainers.scripts.node_folder import NodeFolder
from trainers.scripts.outputs.checkpoint_keeper import CheckpointKeeper
from trainers.scripts.outputs.output_files import OUTPUTS, OutputFiles
from trainers.scripts.outputs.parts import NodeOutput, PartCollector, PartServer
from trainers.scripts.outputs.progress import ScriptProgress, read_progress
from trainers.scripts.outputs.shared_files import SHARED, FileReceiver, FileSharer
from trainers.scripts.outputs.snapshot import snapshots_of
from trainers.storage import Storage

FILES = "files"
POLL_S = 1.0
# Short, since the program waits for shared files.
SHARE_POLL_S = 0.1
# Maximum share of time for reading progress, since output folders may have many files.
_LARGEST_SHARE = 0.1
SMALL_FILES_S = 30.0
# Tries at the end of the program, when nothing else has to wait; the storage itself retries for some 20 s in each.
END_TRIES, END_PAUSE_S = 3, 10.0
# Timeout of other nodes until the main node wants no further parts.
END_TIMEOUT_S = 1800.0
MARKED, SEEN, SHARING = "outputs/marked", "outputs/seen/{}", "outputs/sharing"


class OutputSync:
    """Keeps the files that a program writes on this node.

    Args:
        output: The program's output folder.
        writer: Writer of the group that is open in the journal; None if another node is the main node.
        retention: Decides which checkpoints are kept in the run folder.
        on_progress: Called with new progress on the main node, in a thread.
        node: The group's folders on this node.
    """

    def __init__(
        self,
        output: NodeOutput,
        writer: GroupWriter | None,
        retention: RetentionPolicy,
        on_progress: Callable[[ScriptProgress], None],
        node: NodeFolder,
    ):
        self.on_progress, self._say, self._last_line = on_progress, output.say, ""
        # Prints a repeated error once.
        self._output = output = replace(output, say=self._say_once)
        self._writer, self._node = writer, node
        self._collector, self._server = PartCollector(output), PartServer(output)
        self._files = OutputFiles(output.folder, output.layouts)
        self._keeper: CheckpointKeeper | None = None
        if writer is not None:
            # Stores small files first, since logs must be as new as the checkpoint.
            self._keeper = CheckpointKeeper(output, writer, retention, self._collector, before_entry=self._send_small)
        self._stopping = threading.Event()
        # A single node shares no files.
        self._sharing: FileSharer | FileReceiver | None = None
        self._progress = ScriptProgress()
        self._fenced: FencedError | None = None
        self._small_files_s = time.monotonic()
        self._threads: list[threading.Thread] = []

    def start(self, given_back: Collection[str] = ()) -> None:
        """Starts the threads, before the program starts. Only existing files in `given_back` count as its output."""
        shutil.rmtree(snapshots_of(self._output.folder), ignore_errors=True)
        # On other nodes, the main node's restored files do not count, since these nodes did not write them.
        self._files.begin(given_back if self._keeper is not None else ())
        loops = [self._keep_loop]
        if self._keeper is not None:
            self._keeper.begin()
            loops.append(self._progress_loop)
        if self._output.others or self._writer is None:
            if self._writer is None:
                self._sharing = FileReceiver(self._output, self._files, self._node.localize)
            else:
                key = f"{self._writer.group.outputs}/{SHARED}"
                self._sharing = FileSharer(self._output, key, self._node.requests, self._stopping)
            loops.append(partial(self._share_loop, self._sharing.serve))
        self._threads = [threading.Thread(target=loop, name="outputs", daemon=True) for loop in loops]
        for thread in self._threads:
            thread.start()

    def finish(self, *, ended_well: bool) -> None:
        """Stores the remaining files after the program has ended. All nodes call this, and wait for the main node.

        If the program has ended by itself without an error, all files are stored, otherwise only small files.

        Raises:
            FencedError: another attempt or worker group has taken over.
            StorageError: the program has ended well, and its files cannot be stored.
        """
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        try:
            if self._fenced is not None:
                raise self._fenced
            if self._keeper is not None:
                self._finish_main(self._keeper, ended_well=ended_well)
            else:
                self._finish_other(ended_well=ended_well)
        finally:
            if self._keeper is not None:
                self._collector.end()
            shutil.rmtree(snapshots_of(self._output.folder), ignore_errors=True)

    def _finish_main(self, keeper: CheckpointKeeper, *, ended_well: bool) -> None:
        self._report_progress()
        error = self._try(lambda: keeper.keep_new(ended_well=ended_well))
        if error is not None:
            keeper.give_up(str(error))
        keeper.say_what_is_left()
        self._collector.end()
        if not ended_well:
            self._send_small()
        else:
            assert self._writer is not None
            outputs = self._writer.folder.storage.sub(f"{self._writer.group.outputs}/{FILES}")
            error = self._try(lambda: self._files.send_all(outputs))
            if error is not None:
                raise error

    def _finish_other(self, *, ended_well: bool) -> None:
        end_s = time.monotonic() + END_TIMEOUT_S
        while not (self._server.is_done() or self._output.is_gone(0)) and time.monotonic() < end_s:
            if self._sharing is not None:
                self._try(self._sharing.serve, tries=1)
            self._try(lambda: self._server.serve(ended_well=ended_well), tries=1)
            time.sleep(POLL_S)
        if ended_well:
            self._try(lambda: self._files.send_all(self._own_folder))
        else:
            self._send_small()

    def _keep_loop(self) -> None:
        while self._fenced is None and not self._stopping.wait(POLL_S):
            self._guard(self._keep)

    def _keep(self) -> None:
        if time.monotonic() >= self._small_files_s + SMALL_FILES_S:
            self._small_files_s = time.monotonic()
            self._send_small()
        if self._keeper is None:
            self._server.serve()
        elif isinstance(self._sharing, FileSharer) and self._sharing.is_awaited:
            # The program may wait while it writes a checkpoint, which then is unchanged without being complete.
            self._output.watch.restart()
        else:
            self._keeper.keep_new()

    def _send_small(self) -> None:
        self._try(lambda: self._files.send_small(self._own_folder), tries=1)

    def _share_loop(self, serve: Callable[[], None]) -> None:
        while not self._stopping.wait(SHARE_POLL_S):
            self._guard(serve)

    def _progress_loop(self) -> None:
        pause_s = POLL_S
        while not self._stopping.wait(pause_s):
            began_s = time.monotonic()
            self._guard(self._report_progress)
            pause_s = max(POLL_S, (time.monotonic() - began_s) / _LARGEST_SHARE)

    def _report_progress(self) -> None:
        found = read_progress(self._output.folder)
        # An empty progress is ignored, since the files may be being written.
        if found not in (self._progress, ScriptProgress()):
            self._progress = found
            self.on_progress(found)

    def _guard(self, action: Callable[[], None]) -> None:
        """Runs an action of a thread; prints any error, so that the program continues and the action is retried."""
        try:
            action()
        except FencedError as error:
            self._fenced = error
        except Exception as error:
            self._say_once(str(error) if isinstance(error, RayscribeError) else f"{self._output.folder}: {error!r}")

    def _try(self, action: Callable[[], object], *, tries: int = END_TRIES) -> StorageError | None:
        """Runs an action; prints and retries storage errors. Returns the last error if all tries fail, else None."""
        for left in range(tries - 1, -1, -1):
            try:
                action()
                return None
            except StorageError as error:
                self._say_once(str(error))
                if not left:
                    return error
                time.sleep(END_PAUSE_S)
        raise AssertionError("tries is positive")

    def _say_once(self, line: str) -> None:
        """Prints a line unless it equals the last one, since actions are retried."""
        if line != self._last_line:
            self._last_line = line
            self._say(line)

    @property
    def _own_folder(self) -> Storage:
        """Folder of this node's files, below the attempt's folder."""
        of_node = f"/node-{self._output.node}" if self._output.node else ""
        return self._output.run_folder.storage.sub(f"{ATTEMPTS}/{self._output.attempt}/{OUTPUTS}{of_node}")


def sharing_nodes(
    output: Path | None, group: str, number: int, count: int, board: Board, wait_for: Callable[[str], Any]
) -> frozenset[int]:
    """Returns the nodes that share the main node's output folder; called by the first process of each node.

    Only the main node, number 0 of `count`, restores and keeps files there; two nodes would disturb each other, and
    store all files twice. `output` is None if the folder is not known; `wait_for` returns a topic's value on the board.
    """
    if count == 1:
        return frozenset()
    mark = None if output is None else Path(f"{snapshots_of(output)}-{group}")
    if number:
        wait_for(MARKED)
        board.post(SEEN.format(number), mark is not None and mark.exists())
        sharing: frozenset[int] = wait_for(SHARING)
        return sharing
    if mark is not None:
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
    board.post(MARKED, True)
    found = frozenset(node for node in range(1, count) if wait_for(SEEN.format(node)))
    if mark is not None:
        mark.unlink(missing_ok=True)
    board.post(SHARING, found)
    return found
