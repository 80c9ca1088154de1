"""The family of a config's model or of a folder, among those that `config.family_table` lists."""

from collections.abc import Mapping
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from transformers import PretrainedConfig

from trainers.config.family_table import AnyModelPart, family_parts
from trainers.config.parts.decode_part import DecodePart
from trainers.config.parts.model_part import ModelPart
from trainers.config.parts.part import Part
from trainers.config.schema import TrainConfig
from trainers.config.storage_location import StorageOptions
from trainers.config.validation import refuse, validated
from trainers.errors import ConfigError
from trainers.models.family import Decoder, Family
from trainers.models.pretrained import open_pretrained
from trainers.models.sources.damaged_files import refuse_code
from trainers.models.sources.opened_model import OpenedModel
from trainers.models.sources.source_pin import FIELDS

FAMILIES: Mapping[str, Family[Any]] = {
    name: resolve_name(part.implementation)() for name, part in family_parts().items()
}
# What a training learns of a vocabulary, and where it reads one: weights that are scored have their own.
_LEARNED = ("vocabulary", "vocabulary_file")


class _Model(Part):
    model: AnyModelPart


def resolve_model(config: TrainConfig, opened: OpenedModel | None = None) -> tuple[TrainConfig, Family[Any]]:
    """The config with its model part read by the family of the weights, which a recipe need not name; the family.

    `opened` has the weights' files. None: they are in a folder, or transformers finds them on the Hub.

    Raises:
        ConfigError: the weights cannot be opened, or are of no known family, or of another than `model.family`; or the
            config has fields of another family.
        StorageError: the Hub does not respond.
    """
    model = config.model
    family = family_of(opened.applied_to(model) if opened is not None else model)
    if isinstance(model, family_parts()[family.name]):
        return config, family
    read, problems = validated(_Model, {"model": {**model.model_dump(exclude_unset=True), "family": family.name}})
    refuse(problems, f"{model.name_or_path or 'the model'} is of the family {family.name}")
    assert read is not None
    return config.model_copy(update={"model": read.model.model_copy(update={"family": None})}), family


def model_config_for_scoring(model: ModelPart, name_or_path: str, revision: str | None) -> ModelPart:
    """A model part for other weights, which are only scored: of its fields, those that their family has.

    Raises:
        ConfigError: see `resolve_model`.
        StorageError: the Hub does not respond.
    """
    unset = {name: None for name in (*FIELDS, *_LEARNED) if name in type(model).model_fields}
    changes = {**unset, "init": "pretrained", "name_or_path": name_or_path, "revision": revision}
    named = model.model_copy(update=changes)
    part = family_parts()[family_of(named).name]
    return part(**named.model_dump(include=set(part.model_fields)))


def family_of(model: ModelPart) -> Family[Any]:
    """The family of the config's model: of new weights, or by the config.json of pretrained ones.

    Raises:
        ConfigError: it cannot be opened, or is of no known family, or of another than `model.family`.
        StorageError: the Hub does not respond.
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
    """Refuses, with a ConfigError, fields that have no effect on the family of a config's model."""
    if unsupported := [name for name in config.model.unsupported if _asks_for(config, name)]:
        hint = "; decode.method: beam searches its outputs" if "training.generation_num_beams" in unsupported else ""
        raise ConfigError(
            f"{', '.join(unsupported)}: has no effect on a model of the family {family.name}: remove it{hint}"
        )


def _asks_for(config: TrainConfig, name: str) -> bool:
    """Whether a field, or a training argument, has another value than its default, and is not only switched off."""
    holder, field, *argument = name.split(".")
    part = getattr(config, holder)
    value = getattr(part, field)
    if argument:
        return bool(value.get(argument[0]))
    return value is not False and bool(value != type(part).model_fields[field].default)


def decoder_of(part: DecodePart) -> Decoder | None:
    """What `decode.method` names, of the first family that offers it. None: what models do by themselves."""
    return next((family.decoders[part.method] for family in FAMILIES.values() if part.method in family.decoders), None)


def check_decoder(part: DecodePart, storage_options: StorageOptions) -> None:
    """Errors as of `Decoder.check`."""
    if (decoder := decoder_of(part)) is not None:
        decoder.check(part, storage_options)


def family_of_folder(folder: Path, origin: str | None = None) -> Family[Any]:
    """The family of a model that an export or a checkpoint wrote, and that may have been copied here from `origin`.

    Raises:
        ConfigError: it cannot be opened, or is of no known family.
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
    """The family of the `model_type` in a config.json of `origin`; a ConfigError, if none has it."""
    found = next((family for family in FAMILIES.values() if name in family.model_types), None)
    if found is None:
        types = ", ".join(each for family in FAMILIES.values() for each in family.model_types)
        raise ConfigError(
            f"{origin}: its config.json has model_type {name!r}, and Rayscribe trains {types}: "
            "name weights of one of these, or correct config.json where they are"
        )
    return found
