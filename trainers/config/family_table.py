"""The families of models: a line for each here, and the entry points `rayscribe.families` of other distributions.

A line names a family's part of the config, which names the family itself and imports neither torch nor transformers; it
is imported when it is first asked for, so that the config stays below the models.
"""

from collections.abc import Mapping
from functools import cache
from pkgutil import resolve_name
from typing import Annotated, Any

from pydantic import SerializeAsAny, ValidationError, ValidationInfo, ValidatorFunctionWrapHandler, WrapValidator
from pydantic_core import PydanticCustomError

from trainers.config.parts.model_part import ModelPart
from trainers.plugins import with_plugins

_MODELS = __package__.replace(".config", ".models")
# New weights are of the first, unless the config says otherwise.
FAMILIES = {
    "whisper": f"{_MODELS}.whisper.whisper_part:WhisperPart",
    "ctc": f"{_MODELS}.ctc.ctc_part:CtcPart",
    "seq2seq": f"{_MODELS}.seq2seq.seq2seq_part:Seq2SeqPart",
}


@cache
def family_parts() -> Mapping[str, type[ModelPart]]:
    """The part of the config of each family, by `model.family`."""
    return with_plugins("rayscribe.families", {name: resolve_name(part) for name, part in FAMILIES.items()})


def part_for(content: Mapping[str, Any]) -> tuple[type[ModelPart], dict[str, Any]]:
    """The part of the config that reads a recipe's `model:`, and what it reads of it.

    Where the recipe does not name the family of its weights, this is the first that knows all of its keys;
    `families.resolve_model` asks the weights. A recipe of an earlier version may have the fields of all families: those
    of others are left out where they have their defaults, or are only switched off.
    """
    parts = family_parts()
    if content.get("family") in parts:
        candidates = [parts[content["family"]]]
    else:
        candidates = [*parts.values()][: 1 if content.get("init") == "scratch" else None]
    read = [(part, _without_others(part, content, off)) for off in (False, True) for part in candidates]
    return next(((part, own) for part, own in read if own.keys() <= part.model_fields.keys()), read[len(candidates)])


def families_with(field: str) -> list[str]:
    """Names of the families that have a field."""
    return [name for name, part in family_parts().items() if field in part.model_fields]


def _without_others(part: type[ModelPart], content: Mapping[str, Any], off: bool) -> dict[str, Any]:
    """The content without fields of other families that have their defaults, or `off`, are switched off."""
    parts = family_parts().values()
    fields = [(name, each.model_fields[name]) for each in parts for name in content if name in each.model_fields]
    idle = {name for name, field in fields if content[name] == field.default or (off and content[name] is False)}
    return {name: value for name, value in content.items() if name in part.model_fields or name not in idle}


def _read(content: Any, handler: ValidatorFunctionWrapHandler, info: ValidationInfo) -> ModelPart:
    if not isinstance(content, Mapping):
        part: ModelPart = handler(content)
        return part
    if (name := content.get("family")) not in (None, *family_parts()):
        unknown = PydanticCustomError("unknown_family", "must be one of {names}", {"names": ", ".join(family_parts())})
        raise ValidationError.from_exception_data("model", [{"type": unknown, "loc": ("family",), "input": name}])
    chosen, own = part_for(content)
    return chosen.model_validate(own, context=info.context)


# `model:` of a recipe, read by the part of its family.
AnyModelPart = Annotated[SerializeAsAny[ModelPart], WrapValidator(_read)]
