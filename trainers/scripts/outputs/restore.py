"""Gives a program its last checkpoint back on this node, under the name that it gave it, before it starts."""

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from trainers.errors import DamagedError, ResumeError
from trainers.run_folder.checkpoints import RetentionPolicy, fetch_files, newest
from trainers.run_folder.journal import Checkpoint, State
from trainers.run_folder.layout import CHECKPOINTS, RunFolder
from trainers.scripts.outputs.layouts import (
    CheckpointLayout,
    FoundCheckpoint,
    files_of,
    find,
    remove_checkpoint,
)
from trainers.scripts.outputs.snapshot import snapshots_of
from trainers.storage import Storage


def restore(
    run_folder: RunFolder,
    state: State,
    into: Path,
    layouts: Sequence[CheckpointLayout],
    *,
    retention: RetentionPolicy | None = None,
    say: Callable[[str], None] = print,
) -> FoundCheckpoint | None:
    """Puts the newest undamaged checkpoint of a run into a program's output folder; every node calls it.

    With `retention` also the best one, which programs look for at their end. What would mislead the program is
    deleted: checkpoints that are incomplete, and those ahead of the one that is put back, which other nodes have not.

    Args:
        run_folder: Of the run.
        state: Of its journal, the same on all nodes.
        into: The output folder, absolute. It is not made where there is no checkpoint: some programs refuse to start
            where it exists.
        layouts: Of the program's checkpoints.
        retention: Says which one is the best.
        say: Prints a line for the user.

    Returns:
        The newest one; None where the run has none yet.

    Raises:
        ResumeError: all of the run's are damaged.
        StorageError: the storage is not available.
    """
    storage, made = run_folder.storage.sub(CHECKPOINTS), snapshots_of(into) / "restored"
    left = list(state.checkpoints)
    try:
        while (chosen := newest(left)) is not None and not _is_fetched(storage, chosen, made, say):
            left.remove(chosen)
        if chosen is None and state.checkpoints:
            raise ResumeError(
                f"{storage.url()}: all {len(state.checkpoints)} checkpoints are damaged; set another run.name to start "
                "over"
            )
        # Before the run's first worker group, what is there is the user's own.
        if len(state.groups) > 1:
            _remove_misleading(into, layouts, chosen, say)
        if chosen is None:
            return None
        best = retention.best(left) if retention is not None else None
        if best is not None and best != chosen and _is_fetched(storage, best, made, say):
            _move(made / best.name, into, layouts)
        return FoundCheckpoint(_move(made / chosen.name, into, layouts), chosen.step, is_marked_whole=True)
    finally:
        shutil.rmtree(made.parent, ignore_errors=True)


def _is_fetched(storage: Storage, checkpoint: Checkpoint, made: Path, say: Callable[[str], None]) -> bool:
    try:
        fetch_files(storage, checkpoint, made / checkpoint.name)
    except DamagedError as error:
        say(f"{error}; the program goes on without it")
        return False
    return True


def _move(fetched: Path, into: Path, layouts: Sequence[CheckpointLayout]) -> str:
    """Puts what was fetched in its place, instead of what has its name there; gives its path below `into`."""
    found = find(fetched, layouts)
    for each in found:
        remove_checkpoint(into / each.path)
    files = [path.relative_to(fetched) for path in files_of(fetched)]
    for file in files:
        (into / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.move(fetched / file, into / file)
    # One of a pattern that was changed since is none of the layouts.
    return found[0].path if found else os.path.commonpath(files)


def _remove_misleading(
    into: Path, layouts: Sequence[CheckpointLayout], chosen: Checkpoint | None, say: Callable[[str], None]
) -> None:
    for found in find(into, layouts):
        is_ahead = chosen is not None and found.step is not None and found.step > chosen.step
        if is_ahead or not found.is_marked_whole:
            say(f"{into / found.path} is removed: it is not in the run folder, where all nodes have it from")
            remove_checkpoint(into / found.path)
