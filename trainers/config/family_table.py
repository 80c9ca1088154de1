"""Lists the families of models: one line for each, and entry points `rayscribe.families` of other distributions.

Each line names the family's part of the config, which in turn names the family and imports neither torch nor
transformers. Parts are imported on first use, so that the config does not depend on the models.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from pkgutil import resolve_name
from typing import Annotated, Any, TypeVar

from pydantic import SerializeAsAny, ValidationError, ValidationInfo, ValidatorFunctionWrapHandler, WrapValidator
from pydantic_core import InitErrorDetails, PydanticCustomError

from trainers.config.parts.decode_part import DecodePart
from trainers.config.parts.model_part import ModelPart
from trainers.config.parts.part import Part
from trainers.plugins import with_plugins

PartType = TypeVar("PartType", bound=Part)

_MODELS = __package__.replace(".config", ".models")
# New weights are of the first family, unless the config names another.
FAMILIES = {
    "whisper": f"{_MODELS}.whisper.whisper_part:WhisperPart",
    "ctc": f"{_MODELS}.ctc.ctc_part:CtcPart",
    "seq2seq": f"{_MODELS}.seq2seq.seq2seq_part:Seq2SeqPart",
}


@cache
def family_parts() -> Mapping[str, type[ModelPart]]:
    """Returns each family's part of the config, by `model.family`."""
    return with_plugins("rayscribe.families", {name: resolve_name(part) for name, part in FAMILIES.items()})


def part_for(content: Mapping[str, Any]) -> tuple[type[ModelPart], dict[str, Any]]:
    """Returns the part of the config that reads a recipe's `model:`, and the keys that it reads."""
    parts, family = family_parts(), content.get("family")
    if family is None and content.get("init") == "scratch":
        family = next(iter(parts))
    own = parts.get(str(family))
    return _first_that_knows("model", content, [own] if own is not None else [*parts.values()])


def decode_parts() -> Mapping[str, type[DecodePart]]:
    """Returns each family's part of the config for decoding, by `model.family`."""
    return {name: part.decode_part for name, part in family_parts().items()}


def families_with(section: str, field: str) -> list[str]:
    """Returns the names of the families that have a field in this section (`model` or `decode`)."""
    return [name for name, part in _parts(section).items() if field in part.model_fields]


def _parts(section: str) -> Mapping[str, type[Part]]:
    return family_parts() if section == "model" else decode_parts()


def _read_model(content: Any, handler: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
    if not isinstance(content, Mapping):
        return handler(content)
    parts, family = family_parts(), content.get("family")
    if family not in (None, *parts):
        unknown = PydanticCustomError("unknown_family", "must be one of {names}", {"names": ", ".join(parts)})
        raise ValidationError.from_exception_data("model", [{"type": unknown, "loc": ("family",), "input": family}])
    return _read("model", *part_for(content), family, info)


def _read_decode(content: Any, handler: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
    if not isinstance(content, Mapping):
        return handler(content)
    # The model is None if its part is not valid.
    model, parts = info.data.get("model"), decode_parts()
    family = None if model is None else model.family or (next(iter(parts)) if model.init == "scratch" else None)
    own = [model.decode_part] if model is not None else []
    candidates = own if family is not None else [*own, *parts.values()]
    return _read("decode", *_first_that_knows("decode", content, candidates), family, info)


def _first_that_knows(
    section: str, content: Mapping[str, Any], candidates: Sequence[type[PartType]]
) -> tuple[type[PartType], dict[str, Any]]:
    """Returns the first candidate that knows all keys, else the one that knows most, and the keys that it reads.

    If the recipe does not name the family of its weights, this is a guess; `families.resolve_model` reads it from the
    weights. So a config may have fields of another family: those with their default value are left out, and if that
    is not enough, those that are False.
    """
    read = [(part, _without_others(part, section, content, off)) for off in (False, True) for part in candidates]
    most = max(read[len(candidates) :], key=lambda each: len(each[1].keys() & each[0].model_fields.keys()))
    return next((each for each in read if each[1].keys() <= each[0].model_fields.keys()), most)


def _read(section: str, part: type[Part], content: Mapping[str, Any], family: str | None, info: ValidationInfo) -> Part:
    """Reads a section; refuses fields that only other families have."""
    unlike = f", not of {family}" if family is not None else ""
    errors: list[InitErrorDetails] = []
    for name in content:
        if name not in part.model_fields and (others := families_with(section, name)):
            text = f"unknown key: a field of the family {' or '.join(others)}{unlike}"
            unknown = PydanticCustomError("of_another_family", "{text}", {"text": text})
            errors.append({"type": unknown, "loc": (name,), "input": content[name]})
    if errors:
        raise ValidationError.from_exception_data(section, errors)
    return part.model_validate(content, context=info.context)


def _without_others(part: type[Part], section: str, content: Mapping[str, Any], off: bool) -> dict[str, Any]:
    """Returns the content without fields of other families that have their defaults or, with `off`, are False."""
    parts = _parts(section).values()
    fields = [(name, each.model_fields[name]) for each in parts for name in content if name in each.model_fields]
    idle = {name for name, field in fields if content[name] == field.default or (off and content[name] is False)}
    return {name: value for name, value in content.items() if name in part.model_fields or name not in idle}


# `model:` and `decode:` of a recipe, read by the parts of its family.
AnyModelPart = Annotated[SerializeAsAny[ModelPart], WrapValidator(_read_model)]
AnyDecodePart = Annotated[SerializeAsAny[DecodePart], WrapValidator(_read_decode)]
