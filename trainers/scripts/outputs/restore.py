"""Restores a program's last checkpoint on this node under its original name, before the program starts."""

import os
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath

from trainers.errors import DamagedError
from trainers.run_folder.checkpoints import fetch_files, fetch_undamaged, newest
from trainers.run_folder.journal import Checkpoint, State
from trainers.run_folder.layout import ATTEMPTS, CHECKPOINTS, RunFolder
from trainers.scripts.outputs.checkpoint_keeper import NewestAndBest
from trainers.scripts.outputs.layouts import (
    CheckpointLayout,
    FoundCheckpoint,
    files_of,
    find,
    remove_checkpoint,
)
from trainers.scripts.outputs.output_files import OUTPUTS
from trainers.scripts.outputs.snapshot import snapshots_of
from trainers.storage.base import in_parallel

# Files of nodes other than the main node, below the outputs of an attempt.
_OF_OTHER_NODE = re.compile(r"node-\d+/")


def restore(
    run_folder: RunFolder,
    state: State,
    into: Path,
    layouts: Sequence[CheckpointLayout],
    *,
    retention: NewestAndBest | None = None,
    say: Callable[[str], None] = print,
) -> FoundCheckpoint | None:
    """Restores the newest undamaged checkpoint of a run to a program's output folder; every node calls this.

    With `retention`, also restores the best checkpoints, which programs look for at their end; if it keeps a limited
    number, restores all checkpoints of a layout that every rank reads, e.g. to average several. Deletes incomplete
    checkpoints, and those ahead of the restored one, which other nodes do not have. `into` is absolute, and is created
    only if there is a checkpoint, since some programs refuse to start if it exists.

    Returns:
        The newest checkpoint; None if the run has none yet.

    Raises:
        ResumeError: all checkpoints of the run are damaged.
        StorageError: the storage is not available.
    """
    storage, made = run_folder.storage.sub(CHECKPOINTS), snapshots_of(into) / "restored"
    left = list(state.checkpoints)

    def fetch_one(checkpoint: Checkpoint) -> None:
        fetch_files(storage, checkpoint, made / checkpoint.name)

    def leave_out(checkpoint: Checkpoint, error: DamagedError) -> None:
        say(f"{error}; the program continues without it")
        left.remove(checkpoint)

    try:
        chosen = fetch_undamaged(storage, state.checkpoints, newest, fetch_one, leave_out)
        # Before the run's first worker group, existing files are the user's own.
        if len(state.groups) > 1:
            _remove_misleading(into, layouts, chosen, say)
        if chosen is None:
            return None
        for other in tuple(_others(left, chosen, layouts, retention)):
            if other != chosen:
                try:
                    fetch_one(other)
                    _move(made / other.name, into, layouts)
                except DamagedError as error:
                    leave_out(other, error)
        return FoundCheckpoint(_move(made / chosen.name, into, layouts), chosen.step, is_marked_whole=True)
    finally:
        shutil.rmtree(made.parent, ignore_errors=True)


def give_back_files(
    run_folder: RunFolder, attempt: int, into: Path, localize: Callable[[Path], None]
) -> frozenset[str]:
    """Restores small files that the main node had besides its checkpoints, such as logs and a tokenizer.

    Restores the version of the last attempt that has the file; keeps existing files. `attempt` is the newest attempt,
    and `localize` replaces paths in a file by this group's folders on this node. Returns the names of restored files.
    """
    keys = {
        entry.key: f"{ATTEMPTS}/{number}/{OUTPUTS}/{entry.key}"
        for number in range(1, attempt + 1)
        for entry in run_folder.storage.sub(f"{ATTEMPTS}/{number}/{OUTPUTS}").list_files()
        if not _OF_OTHER_NODE.match(entry.key) and not (into / entry.key).exists()
    }

    def give_back(name: str) -> None:
        run_folder.storage.download_file(keys[name], into / name)
        localize(into / name)

    in_parallel(give_back, keys)
    return frozenset(keys)


def _others(
    left: Sequence[Checkpoint],
    newest_one: Checkpoint,
    layouts: Sequence[CheckpointLayout],
    retention: NewestAndBest | None,
) -> Sequence[Checkpoint]:
    """Returns the checkpoints to restore in addition to the newest one."""
    if retention is None:
        return ()
    folders = {str(parent) for name in newest_one.files for parent in PurePosixPath(name).parents}
    is_read_by_all = any(each.is_read_by_all and each.has_path(folder) for each in layouts for folder in folders)
    return left if is_read_by_all and retention.num_to_keep is not None else retention.best_ones(left)


def _move(fetched: Path, into: Path, layouts: Sequence[CheckpointLayout]) -> str:
    """Moves a fetched checkpoint into the folder `into`, replacing one of the same name; returns its path there."""
    found = find(fetched, layouts)
    for each in found:
        remove_checkpoint(into / each.path)
    files = [path.relative_to(fetched) for path in files_of(fetched)]
    for file in files:
        (into / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.move(fetched / file, into / file)
    # If script.checkpoints has changed since, the checkpoint may have none of the layouts.
    return found[0].path if found else os.path.commonpath(files)


def _remove_misleading(
    into: Path, layouts: Sequence[CheckpointLayout], chosen: Checkpoint | None, say: Callable[[str], None]
) -> None:
    for found in find(into, layouts):
        is_ahead = chosen is not None and found.step is not None and found.step > chosen.step
        if is_ahead or not found.is_marked_whole:
            say(f"{into / found.path} is removed: the run folder does not have it, so other nodes do not get it")
            remove_checkpoint(into / found.path)
