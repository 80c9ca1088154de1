"""The families of recognizers that Rayscribe trains. To add one: a module with its `Family`, and its name here."""

from pathlib import Path

from transformers import PretrainedConfig

from trainers.config.parts.model_part import ModelPart
from trainers.errors import ConfigError
from trainers.models.family import Family
from trainers.models.pretrained import open_pretrained
from trainers.models.whisper.whisper_family import WhisperFamily

# A model that is trained from scratch is of the first.
FAMILIES: dict[str, Family] = {family.name: family for family in (WhisperFamily(),)}


def family_of(model: ModelPart) -> Family:
    """The family of the config's model: of new weights, or by the config.json of pretrained ones.

    Raises:
        ConfigError: it cannot be opened, or is of no known family.
        StorageError: the Hub does not respond.
    """
    if model.init == "scratch":
        return next(iter(FAMILIES.values()))
    name = open_pretrained(model, lambda: _model_type(str(model.name_or_path), model.revision or "main"))
    return _known(name, f"model.name_or_path: {model.name_or_path}")


def family_of_folder(folder: Path, origin: str | None = None) -> Family:
    """The family of a model that an export or a checkpoint wrote.

    Args:
        folder: Its folder here.
        origin: Where it was copied from, for the message. None: the folder itself.

    Raises:
        ConfigError: it cannot be opened, or is of no known family.
    """
    try:
        return _known(_model_type(str(folder), "main"), origin or str(folder))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{origin or folder}: holds no model that can be opened: {error}") from error


def _model_type(name_or_path: str, revision: str) -> str | None:
    content, _ = PretrainedConfig.get_config_dict(name_or_path, revision=revision)
    if not content:
        raise OSError("it has no config.json")
    return content.get("model_type")


def _known(name: str | None, origin: str) -> Family:
    if name not in FAMILIES:
        raise ConfigError(
            f"{origin}: its config.json has model_type {name!r}, and Rayscribe trains {', '.join(FAMILIES)}: "
            "name weights of one of these, or correct config.json where they are"
        )
    return FAMILIES[name]
