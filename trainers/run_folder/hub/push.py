"""Pushes a run's best model to the Hub: by the run at its end, and by `rayscribe push`."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from trainers.config.parts.run_part import HubPart
from trainers.config.storage_location import is_url
from trainers.errors import ConfigError
from trainers.run_folder.hub.repository import repository_of
from trainers.run_folder.journal import Journal, Push, State
from trainers.run_folder.layout import MODEL, RunFolder

CARD = "README.md"
# Placeholder in a model card for the place of the model.
PLACE = "<this folder>"


def is_pushed(state: State, part: HubPart, run_name: str) -> bool:
    """Returns True if the model of the run's result is in the configured repository of the Hub."""
    wanted = (state.finished.outputs if state.finished is not None else None, _model_id(part, run_name))
    return any((push.outputs, push.model_id) == wanted for push in state.pushes)


def push_run(folder: RunFolder, part: HubPart) -> Push:
    """Pushes the model of a finished run, and records the push in the run's journal.

    Safe to repeat: existing files are not sent again, and an unchanged model makes no new commit.

    Raises:
        ConfigError: the run has no model, or the Hub refuses the token, the name or the model.
        StorageError: the Hub, or the run's storage, is not available.
    """
    journal = Journal(folder)
    finish = journal.read().finished
    names = [name.removeprefix(f"{MODEL}/") for name in finish.files if name.startswith(f"{MODEL}/")] if finish else []
    if finish is None or not names:
        why = "has no model to push" if finish is not None else "has not finished, and has no model to push yet"
        raise ConfigError(f"{folder.url}: this run {why}: name a training that has finished")
    repository = repository_of(part, folder.name, make=True)
    with _on_this_disk(folder, f"{finish.outputs}/{MODEL}") as model:
        files: dict[str, Path | bytes] = {name: _file_in(model, name) for name in names}
        if CARD in files:
            files[CARD] = (model / CARD).read_text(encoding="utf-8").replace(PLACE, repository.id).encode()
        commit = repository.commit(files, f"The best model of {folder.name}")
    push = Push(finish.outputs, _model_id(part, folder.name), repository.url, commit)
    journal.append(lambda state: None if push in state.pushes else {"kind": "pushed", **asdict(push)})
    return push


def _model_id(part: HubPart, run_name: str) -> str:
    return part.model_id if part.model_id is not None else run_name


@contextmanager
def _on_this_disk(folder: RunFolder, key: str) -> Iterator[Path]:
    """Yields a local copy of a folder of the run."""
    if not is_url(folder.url):
        yield Path(folder.url).resolve() / key
        return
    with tempfile.TemporaryDirectory(prefix="rayscribe-push-") as local:
        folder.storage.download_folder(key, Path(local))
        yield Path(local).resolve()


def _file_in(model: Path, name: str) -> Path:
    """Returns the path of a model's file; raises ConfigError for links out of the folder, which others may make."""
    path = model / name
    if not path.resolve().is_relative_to(model):
        raise ConfigError(f"{path}: leads out of the model's folder, and is not pushed: remove the link")
    return path
