"""Keeps a program's checkpoints on the main node: stores each complete one, adds it to the journal, retains some."""

import contextlib
import re
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from trainers.errors import StorageError
from trainers.run_folder.checkpoints import Files, RetentionPolicy, delete_checkpoint, newest, upload
from trainers.run_folder.fencing import GroupWriter
from trainers.run_folder.journal import Checkpoint, State
from trainers.run_folder.layout import now
from trainers.scripts.outputs.layouts import FoundCheckpoint, Signature, find, shows_its_end, signature_of
from trainers.scripts.outputs.parts import NodeOutput, PartCollector, Wanted
from trainers.scripts.outputs.progress import BEST_STEP, scores_at
from trainers.scripts.outputs.snapshot import ChangedError, Snapshot
from trainers.storage import Storage

RETRY_S = 15.0
# Scores of which larger values are better, unlike error rates and losses.
_LARGER_IS_BETTER = re.compile(r"(^|_)(acc|accuracy|bleu|f1|pesq|stoi|si-?snr)(_|$)")
_NO_SCORES = {"loss", BEST_STEP}


class _Waiting(NamedTuple):
    """A checkpoint that is being stored, and is retried if the storage fails, with its files on this node."""

    checkpoint: Checkpoint
    wanted: Wanted
    snapshot: Snapshot


class CheckpointKeeper:
    """Keeps the checkpoints of an output folder; calls `before_entry` to store other files that a checkpoint needs."""

    def __init__(
        self,
        output: NodeOutput,
        writer: GroupWriter,
        retention: RetentionPolicy,
        parts: PartCollector,
        before_entry: Callable[[], None] = lambda: None,
    ):
        self._folder, self._layouts, self._watch, self._say = output.folder, output.layouts, output.watch, output.say
        self._writer, self._retention, self._parts, self._before_entry = writer, retention, parts, before_entry
        # Checkpoints that need not be stored: those already stored, and those that existed before the program began.
        self._done: dict[str, Signature] = {}
        # Sets of file names of this program's complete checkpoints.
        self._file_names: set[frozenset[str]] = set()
        # Names, in the run folder, of all checkpoints that were to be stored.
        self._names: set[str] = set()
        self._waiting: _Waiting | None = None
        self._retry_s = 0.0

    def begin(self) -> None:
        """Marks existing checkpoints, restored or not of this run, as done; called before the program begins."""
        for found in find(self._folder, self._layouts):
            self._done[found.path] = signature_of(self._folder / found.path)
            if found.is_marked_whole:
                self._file_names.add(_names(self._done[found.path]))

    def keep_new(self, *, ended_well: bool | None = None) -> None:
        """Stores new complete checkpoints, the oldest first, until nothing is left or the storage fails.

        Args:
            ended_well: True if the program ended by itself without an error, and therefore left nothing incomplete;
                False if it ended otherwise; None if it may still write.

        Raises:
            FencedError: another attempt or worker group has taken over.
            StorageError: the storage does not accept a checkpoint, which is retried later.
        """
        if self._waiting is not None and ended_well is None and time.monotonic() < self._retry_s:
            return
        while True:
            new = self._new(ended_well)
            if self._waiting is None and (not new or not self._take(*new.pop(0))):
                return
            try:
                self._store_waiting()
            except StorageError as error:
                self._retry_s = time.monotonic() + RETRY_S
                if new:
                    # While this checkpoint blocks newer ones, the program may delete them.
                    self.give_up(str(error))
                raise

    def give_up(self, reason: str) -> None:
        """Drops the checkpoint that is still waiting to be stored, if any."""
        if self._waiting is not None:
            self._say(f"{self._waiting.wanted.path} could not be kept: {reason}")
            with contextlib.suppress(StorageError):
                delete_checkpoint(self._writer.folder.storage, self._waiting.checkpoint.name)
            self._let_go()

    def say_what_is_left(self) -> None:
        """Prints which checkpoints are not kept since they are incomplete; called after the program has ended."""
        for found in find(self._folder, self._layouts):
            if self._done.get(found.path) != signature_of(self._folder / found.path):
                self._say(f"{found.path} is not kept: nothing shows that the program has completed it")

    def _let_go(self) -> None:
        if self._waiting is not None:
            self._waiting.snapshot.close()
            self._waiting = None

    def _new(self, ended_well: bool | None) -> list[tuple[FoundCheckpoint, Signature]]:
        new = []
        for found in find(self._folder, self._layouts):
            signature, unchanged_s = self._watch.look(self._folder / found.path)
            if self._done.get(found.path) == signature or not found.is_marked_whole:
                continue
            was_completed = ended_well or (ended_well is False and self._was_completed(found, signature))
            if unchanged_s >= found.stable_s or was_completed:
                new.append((found, signature))
        return new

    def _was_completed(self, found: FoundCheckpoint, signature: Signature) -> bool:
        """Returns True if the last checkpoint of a program that a signal or an error ended is complete.

        This is so if its last file exists, or if it has the same files as an earlier checkpoint, and each is complete.
        """
        has_all = _names(signature) in self._file_names and shows_its_end(self._folder / found.path)
        return found.has_last_file or has_all

    def _take(self, found: FoundCheckpoint, signature: Signature) -> bool:
        """Begins to store a checkpoint; returns False if the program has just deleted or changed it."""
        state = self._writer.check()
        try:
            snapshot = Snapshot(self._folder, found.path, signature)
        except ChangedError:
            return False
        self._done[found.path] = signature
        self._file_names.add(_names(signature))
        checkpoint = self._described(found, state, snapshot)
        self._waiting = _Waiting(checkpoint, Wanted(checkpoint.name, found.path, snapshot.files), snapshot)
        return True

    def _described(self, found: FoundCheckpoint, state: State, snapshot: Snapshot) -> Checkpoint:
        last = newest(state.checkpoints)
        step = found.step if found.step is not None else (last.step if last is not None else 0) + 1
        group, attempt = self._writer.group.id, self._writer.attempt
        name, count = f"checkpoint-{step}-a{attempt}-{group}", 1
        # A program may write another checkpoint at the same step, and other nodes may know the name of a dropped
        # checkpoint.
        while state.has(name) or name in self._names:
            count += 1
            name = f"checkpoint-{step}-a{attempt}-{count}-{group}"
        self._names.add(name)
        files = {file: dict[str, Any]() for file in snapshot.files}
        return Checkpoint(name, step, attempt, scores_at(snapshot.root / found.path), now(), files)

    def _store_waiting(self) -> None:
        assert self._waiting is not None
        checkpoint, wanted, snapshot = self._waiting

        def others(target: Storage) -> Files:
            snapshot.check()
            files = self._parts.collect(wanted, target)
            self._before_entry()
            return files

        try:
            self._parts.announce(wanted)
            upload(checkpoint, snapshot.root, self._writer, self._retention, others)
        except ChangedError as error:
            # The checkpoint that replaces it is a new one, and is stored once it is complete.
            self._say(str(error))
            delete_checkpoint(self._writer.folder.storage, checkpoint.name)
        self._let_go()


def _names(signature: Signature) -> frozenset[str]:
    return frozenset(name for name, _, _ in signature)


class NewestAndBest(RetentionPolicy):
    """Retains the newest checkpoints and the best ones, since programs load their best checkpoint at their end.

    transformers' Trainer names its best checkpoint in each checkpoint (load_best_model_at_end). Other programs do not
    say which score they use, so the best checkpoint by each of their scores is kept.
    """

    def __init__(self, num_to_keep: int | None):
        super().__init__(num_to_keep, "step", "max")

    def surplus(self, checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
        best = self.best_ones(checkpoints)
        return [item for item in super().surplus(checkpoints) if item not in best]

    def best_ones(self, checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
        """Returns the best checkpoint by each score, of ties the newest, and the one at the newest's best step."""
        names = sorted({name for item in checkpoints for name in item.finite_metrics} - _NO_SCORES)
        policies = [RetentionPolicy(None, name, "max" if _LARGER_IS_BETTER.search(name) else "min") for name in names]
        last = newest(checkpoints)
        named = last.metrics.get(BEST_STEP) if last is not None else None
        found = [policy.best(checkpoints) for policy in policies]
        found.append(newest(item for item in checkpoints if item.step == named))
        return list({item.name: item for item in found if item is not None}.values())
