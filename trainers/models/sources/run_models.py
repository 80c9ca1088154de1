"""Finds the best model of a run, from its journal."""

from trainers.config.parts.model_source import RUN
from trainers.config.storage_location import StorageOptions, in_home, is_url, unsupported_url
from trainers.errors import ConfigError
from trainers.run_folder import layout
from trainers.run_folder.checkpoints import refused_only
from trainers.run_folder.journal import Journal
from trainers.run_folder.layout import RunFolder
from trainers.storage import open_storage


def model_in(address: str, storage_options: StorageOptions) -> str | None:
    """Returns the folder or URL of the model in a run folder, or in a folder of a model; None if there is none.

    A run's model is the one that its journal names, not the copy at the root of the run folder.
    """
    state = Journal(RunFolder(open_storage(address, storage_options))).read()
    home = address if state.finished is None else f"{address}/{state.finished.outputs}"
    for candidate in (f"{home}/{layout.MODEL}", home):
        if open_storage(candidate, storage_options).exists("config.json"):
            return candidate
    return None


def address_of(model: str) -> str | None:
    """Returns the folder or URL that a text names; None if it names no folder that exists, as a Hub id."""
    if is_url(model):
        return model.rstrip("/")
    local = in_home(model)
    return str(local.resolve()) if local.exists() else None


def find_model(model: str, storage_options: StorageOptions, argument: str = "--model") -> str:
    """Returns the folder or URL of a run's model (`model_in`), or the text if it names a model itself, or a Hub id.

    Raises ConfigError, whose message begins with `argument`, if the folder or URL has no model.
    """
    if problem := unsupported_url(model):
        raise ConfigError(f"{argument} {model}: {problem}")
    address = address_of(model)
    if address is None:
        if in_home(model).is_absolute() or model.startswith("."):
            raise ConfigError(f"{argument} {model}: no such folder; give a run folder, or a folder with a model")
        return model
    found = model_in(address, storage_options)
    if found is None:
        raise ConfigError(f"{argument} {model}: {_why_none(address, storage_options)}")
    return found


def _why_none(address: str, storage_options: StorageOptions) -> str:
    """Returns why there is no model in a folder, and what to name instead."""
    state = Journal(RunFolder(open_storage(address, storage_options))).read()
    if state.number == 0 or state.finished is not None:
        return f"holds no config.json, nor a {layout.MODEL}/ folder; give a run folder, or a folder with a model"
    if refused_only(state.checkpoints):
        text = "the run has no model, since checkpoint.refuse_if refuses all of its checkpoints: train again"
    else:
        text = "the run has not finished: continue it (the same command, or `rayscribe resume`)"
    for checkpoint in reversed(state.checkpoints):
        folder = f"{address}/{layout.CHECKPOINTS}/{checkpoint.name}"
        if model_in(folder, storage_options) is not None:
            return f"{text}, or name a checkpoint: {folder}"
    return f"{text}; it has no checkpoint yet with a model"


def model_of_run(field: str, name: str, storage_path: str, storage_options: StorageOptions) -> str:
    """Returns the folder or URL of the model of another run in the same storage.

    Raises ConfigError if the run does not exist, or has no model yet.
    """
    url = f"{storage_path}/{name}"
    state = Journal(RunFolder(open_storage(url, storage_options))).read()
    if state.number == 0:
        raise ConfigError(f"{field}: {RUN}{name}: there is no run {name} in {storage_path}: name one that is there")
    found = model_in(url, storage_options) if state.finished is not None else None
    if found is None:
        last = state.checkpoints[-1].name if state.checkpoints else None
        instead = f", or begin with a checkpoint (run.resume: from:{url}/{layout.CHECKPOINTS}/{last})" if last else ""
        if refused_only(state.checkpoints):
            why = f"checkpoint.refuse_if refuses all checkpoints of {url}: train again"
        else:
            why = f"{url} has not finished, and has no best model yet: wait"
        raise ConfigError(f"{field}: {RUN}{name}: {why}{instead}")
    return found
