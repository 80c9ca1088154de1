"""The families of recognizers that Rayscribe trains. To add one: a module with its `Family`, and its name here."""

from pathlib import Path

from transformers import PretrainedConfig

from trainers.config.parts.model_part import ModelPart
from trainers.config.schema import TrainConfig
from trainers.errors import ConfigError
from trainers.models.ctc.ctc_family import CtcFamily
from trainers.models.family import Family
from trainers.models.pretrained import open_pretrained
from trainers.models.seq2seq.seq2seq_family import Seq2SeqFamily
from trainers.models.whisper.whisper_family import WhisperFamily

# A model that is trained from scratch is of the first, unless its config says otherwise.
FAMILIES: dict[str, Family] = {family.name: family for family in (WhisperFamily(), CtcFamily(), Seq2SeqFamily())}


def family_of(model: ModelPart) -> Family:
    """The family of the config's model: of new weights, or by the config.json of pretrained ones.

    Raises:
        ConfigError: it cannot be opened, or is of no known family, or of another than `model.family`.
        StorageError: the Hub does not respond.
    """
    if model.init == "scratch":
        return FAMILIES[model.family] if model.family is not None else next(iter(FAMILIES.values()))
    name = open_pretrained(model, lambda: _model_type(str(model.name_or_path), model.revision or "main"))
    family = _known(name, f"model.name_or_path: {model.name_or_path}")
    if model.family not in (None, family.name):
        raise ConfigError(
            f"model.family is {model.family}, but {model.name_or_path} is a {name} model, which is of the family "
            f"{family.name}: set model.family: {family.name}, or name other weights"
        )
    return family


def refuse_foreign_fields(config: TrainConfig, family: Family) -> None:
    """Refuses fields that have no effect on the family of a config's model, and would be ignored.

    Raises:
        ConfigError: names each.
    """
    foreign = [name for name in family.foreign_fields if _asks_for(config, name)]
    if foreign:
        hint = "; decode.method: beam searches its outputs" if "training.generation_num_beams" in foreign else ""
        raise ConfigError(
            f"{', '.join(foreign)}: has no effect on a model of the family {family.name}: remove it{hint}"
        )


def _asks_for(config: TrainConfig, name: str) -> bool:
    """Whether a field, or a training argument, has another value than its default, and is not only switched off."""
    holder, field, *argument = name.split(".")
    part = getattr(config, holder)
    value = getattr(part, field)
    if argument:
        return bool(value.get(argument[0]))
    return value is not False and bool(value != type(part).model_fields[field].default)


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
    found = next((family for family in FAMILIES.values() if name in family.model_types), None)
    if found is None:
        types = ", ".join(each for family in FAMILIES.values() for each in family.model_types)
        raise ConfigError(
            f"{origin}: its config.json has model_type {name!r}, and Rayscribe trains {types}: "
            "name weights of one of these, or correct config.json where they are"
        )
    return found
