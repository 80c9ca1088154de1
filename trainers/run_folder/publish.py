"""The files at the root of a run folder: copies, for people, of what the journal names.

An attempt that was paused here and resumes when another has finished may overwrite one file with what was right before.
So everyone who publishes reads the journal before each file and after the last one, and goes on until the root has
what the journal names at that time. Programs read through the journal, and are never between two of these files.
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
    """Copies to the root what the journal names, result.json last. It may be repeated.

    Raises:
        StorageError: the storage does not accept it.
    """
    done: dict[str, str] = {}
    while missing := [(key, source) for key, source in _sources(journal.read()).items() if done.get(key) != source]:
        key, source = missing[0]
        try:
            folder.storage.copy_file(source, key)
        except StorageError:
            # A later attempt may have deleted it, once it had results of its own.
            if _sources(journal.read()).get(key) == source:
                raise
        else:
            done[key] = source


def _sources(state: State) -> dict[str, str]:
    """What each file of the root is a copy of, in the order of copying."""
    sources = {name: f"{ATTEMPTS}/{state.prepared}/{name}" for name in REQUEST} if state.prepared is not None else {}
    if state.finished is not None:
        files = sorted(state.finished.files, key=lambda name: (name == RESULT, name))
        sources.update({name: f"{state.finished.outputs}/{name}" for name in files})
    return sources
