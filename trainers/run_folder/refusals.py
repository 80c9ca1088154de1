"""When a run folder is no place to begin or to go on in: what should be there is not. Imports no torch."""

import platform

from trainers.errors import ResumeError, StorageError
from trainers.run_folder.journal import State
from trainers.run_folder.layout import CHECKPOINTS, RESULT, RunFolder
from trainers.run_folder.staging import staged_checkpoints_of_run

# In an experiment: the kind of run that it is of. Of a training nothing says it.
TRAINER, TRAINING = "trainer", "huggingface"


def refuse_another_trainer(state: State, folder: RunFolder, trainer: str) -> None:
    """Refuses a folder of a run of another kind.

    Raises:
        ResumeError: it holds a training where a program is to run, or the other way round.
    """
    if state.experiment is not None and (known := state.experiment.get(TRAINER, TRAINING)) != trainer:
        raise ResumeError(
            f"{folder.url}: holds a run with trainer: {known}, and this recipe has trainer: {trainer}: name another "
            "run (--set run.name=…)"
        )


def refuse_without_journal(state: State, folder: RunFolder) -> None:
    """Refuses a folder whose checkpoints no journal vouches for, instead of beginning anew next to them.

    Raises:
        ResumeError: it holds checkpoints or a result, and no journal.
    """
    if state.number == 0 and (folder.storage.exists(RESULT) or folder.storage.list_folders(CHECKPOINTS)):
        raise ResumeError(
            f"{folder.url}: holds checkpoints or a result but no journal, so it is not known which of them count; "
            "name another run (--set run.name=…), starting from one of them where wanted (--set run.resume=from:…)"
        )


def refuse_without_checkpoint(state: State, folder: RunFolder, expected: str | None) -> None:
    """Refuses a folder in which a checkpoint that the run is known to have is missing, as where nothing is mounted.

    Raises:
        StorageError: a checkpoint is missing; it is tried again, since the storage may be mounted meanwhile.
    """
    if state.has_begun:
        return
    start_over = "give the run another name (run.name)"
    if expected is None and state.number == 0:
        staged = next(staged_checkpoints_of_run(folder.url), None)
        if staged is None:
            return
        expected = staged.name
        start_over = f"{start_over}, or delete {staged}, where it was left to be uploaded"
    if expected is not None:
        raise StorageError(
            f"{folder.url}: this run has {expected}, but no checkpoint was found there from {platform.node()}: mount "
            f"the storage on this node, and the run continues; to start over on purpose, {start_over}"
        )
