"""What people see at the root of a run folder: copies of what the journal names, under the names that they know.

An attempt that was paused here and wakes when another has finished may overwrite one file with what was right before.
So everyone who publishes asks the journal before each file and after the last one, and goes on until the root shows
what the journal names at that time. Programs read through the journal and never see the moment between.
"""

from trainers.errors import StorageError
from trainers.run_folder.journal import Journal, State
from trainers.run_folder.layout import (
    ATTEMPTS,
    CONFIG,
    ENVIRONMENT,
    EXPERIMENT,
    OVERRIDES,
    QUARANTINE,
    RESULT,
    RunFolder,
)

REQUEST = (CONFIG, OVERRIDES, ENVIRONMENT, EXPERIMENT, QUARANTINE)


def publish(folder: RunFolder, journal: Journal) -> None:
    """Shows at the root what the journal names, result.json last. Doing it again does no harm.

    Raises:
        StorageError: the storage does not take it.
    """
    done: dict[str, str] = {}
    while left := [(key, source) for key, source in _shown(journal.read()).items() if done.get(key) != source]:
        key, source = left[0]
        try:
            folder.storage.copy_file(source, key)
        except StorageError:
            # A later attempt may have swept it away, once it had results of its own.
            if _shown(journal.read()).get(key) == source:
                raise
        else:
            done[key] = source


def _shown(state: State) -> dict[str, str]:
    """Where each file of the root comes from, in the order of copying."""
    shown = {name: f"{ATTEMPTS}/{state.prepared}/{name}" for name in REQUEST} if state.prepared is not None else {}
    if state.finished is not None:
        files = sorted(state.finished.files, key=lambda name: (name == RESULT, name))
        shown.update({name: f"{state.finished.outputs}/{name}" for name in files})
    return shown
