"""Determines the family of a config's model or of a folder, among those that `config.family_table` lists."""

from collections.abc import Mapping
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from transformers import PretrainedConfig

from trainers.config.family_table import AnyDecodePart, AnyModelPart, family_parts
from trainers.config.parts.decode_part import DecodePart
from trainers.config.parts.model_part import ModelPart
from trainers.config.parts.part import ConfigScope, Part
from trainers.config.schema import TrainConfig
from trainers.config.storage_location import StorageOptions
from trainers.config.validation import refuse, validated
from trainers.errors import ConfigError
from trainers.models.family import Decoder, Family
from trainers.models.label_codec import LabelCodec
from trainers.models.pretrained import open_pretrained
from trainers.models.sources.damaged_files import refuse_code
from trainers.models.sources.model_files import FIELDS
from trainers.models.sources.opened_model import OpenedModel

FAMILIES: Mapping[str, Family[Any]] = {
    name: resolve_name(part.implementation)() for name, part in family_parts().items()
}
# Fields for learning or reading a vocabulary in training; weights that are only scored have their own.
_LEARNED = ("vocabulary", "vocabulary_file")


class _Parts(Part):
    model: AnyModelPart
    decode: AnyDecodePart


def resolve_model(config: TrainConfig, opened: OpenedModel | None = None) -> tuple[TrainConfig, Family[Any]]:
    """Returns the config, whose model and decode part are read by the weights' family if it names none; and the family.

    `opened` has the weights' files; if None, they are in a folder, or transformers finds them on the Hub.

    Raises:
        ConfigError: The weights cannot be opened, or their family is unknown or differs from `model.family`; or the
            config has fields of another family.
        StorageError: The Hub does not respond.
    """
    model = config.model
    family = family_of(opened.applied_to(model) if opened is not None else model)
    part = family_parts()[family.name]
    if isinstance(model, part) and type(config.decode) is part.decode_part:
        return config, family
    named = {**model.model_dump(exclude_unset=True), "family": family.name}
    read = _read(config, named, f"{model.name_or_path or 'the model'} is of the family {family.name}")
    own = read.model.model_copy(update={"family": model.family})
    return config.model_copy(update={"model": own, "decode": read.decode}), family


def decoded_by(config: TrainConfig, family: LabelCodec) -> TrainConfig:
    """Returns the config, whose decode part is read by the family of weights that are only scored.

    Raises ConfigError if the config has fields of another family.
    """
    part = family_parts()[family.name]
    if type(config.decode) is part.decode_part:
        return config
    origin = f"the model is of the family {family.name}, and decode is not (--set decode={{}} has its defaults)"
    read = _read(config, part.model_construct(family=family.name), origin)
    return config.model_copy(update={"decode": read.decode})


def _read(config: TrainConfig, model: Any, origin: str) -> _Parts:
    """Returns a model part that names its family, and the config's decode part, read by that family."""
    content = {"model": model, "decode": config.decode.model_dump(exclude_unset=True)}
    read, problems = validated(_Parts, content, ConfigScope(trains=False))
    refuse(problems, origin)
    assert read is not None
    return read


def model_config_for_scoring(model: ModelPart, folder: str) -> ModelPart:
    """Returns a model part for weights in a folder that are only scored, with the fields of the weights' family.

    Raises as `family_of`.
    """
    unset = {name: None for name in (*FIELDS, *_LEARNED) if name in type(model).model_fields}
    changes = {**unset, "init": "pretrained", "name_or_path": folder, "revision": None}
    named = model.model_copy(update=changes)
    part = family_parts()[family_of(named).name]
    return part(**named.model_dump(include=set(part.model_fields)))


def family_of(model: ModelPart) -> Family[Any]:
    """Returns the family of the config's model, for pretrained weights according to their config.json.

    Raises ConfigError if config.json cannot be opened, or its family is unknown or differs from `model.family`, and
    StorageError if the Hub does not respond.
    """
    if model.init == "scratch":
        return FAMILIES[model.family or next(iter(FAMILIES))]
    content = open_pretrained(model, lambda: _config_of(str(model.name_or_path), model.revision or "main"))
    name, origin = content.get("model_type"), f"model.name_or_path: {model.name_or_path}"
    refuse_code(content, f"{origin}: its config.json")
    family = family_of_type(name, origin)
    if model.family not in (None, family.name):
        raise ConfigError(
            f"model.family is {model.family}, but {model.name_or_path} is a {name} model, which is of the family "
            f"{family.name}: set model.family: {family.name}, or name other weights"
        )
    return family


def refuse_unsupported(config: TrainConfig, family: Family[Any]) -> None:
    """Raises ConfigError for fields that have no effect on the family of a config's model."""
    if unsupported := [name for name in config.model.unsupported if _asks_for(config, name)]:
        raise ConfigError(f"{', '.join(unsupported)}: has no effect on a model of the family {family.name}: remove it")


def _asks_for(config: TrainConfig, name: str) -> bool:
    """Returns True if a field, or a training argument, is neither False nor its default."""
    holder, field, *argument = name.split(".")
    part = getattr(config, holder)
    value = getattr(part, field)
    if argument:
        return bool(value.get(argument[0]))
    return value is not False and bool(value != type(part).model_fields[field].default)


def decoder_of(part: DecodePart) -> Decoder | None:
    """Returns the decoder that searches a model's outputs; None if the part configures no search."""
    return resolve_name(part.decoder)() if part.decoder is not None and part.settings else None


def check_decoder(part: DecodePart, storage_options: StorageOptions) -> None:
    """Checks the search that a part configures; raises as `Decoder.check`."""
    if (decoder := decoder_of(part)) is not None:
        decoder.check(part, storage_options)


def family_of_folder(folder: Path, origin: str | None = None) -> Family[Any]:
    """Returns the family of an exported model or checkpoint, which may have been copied here from `origin`.

    Raises ConfigError if the folder cannot be opened, or its family is unknown.
    """
    try:
        return family_of_type(_config_of(str(folder), "main").get("model_type"), origin or str(folder))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{origin or folder}: holds no model that can be opened: {error}") from error


def _config_of(name_or_path: str, revision: str) -> dict[str, Any]:
    content: dict[str, Any] = PretrainedConfig.get_config_dict(name_or_path, revision=revision)[0]
    if not content:
        raise OSError("it has no config.json")
    return content


def family_of_type(name: str | None, origin: str = "this model") -> Family[Any]:
    """Returns the family of the `model_type` in the config.json of `origin`; raises ConfigError if it is unknown."""
    found = next((family for family in FAMILIES.values() if name in family.model_types), None)
    if found is None:
        types = ", ".join(each for family in FAMILIES.values() for each in family.model_types)
        raise ConfigError(
            f"{origin}: its config.json has model_type {name!r}, and Rayscribe trains {types}: "
            "name weights of one of these, or correct config.json where they are"
        )
    return found
