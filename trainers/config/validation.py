"""Validation of a config against its model: one message that lists every problem with its field, value and fix."""

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError

from trainers.config.parts.part import UNSUPPORTED_URL, URL
from trainers.config.parts.run_part import NAME
from trainers.config.parts.scaling_part import BACKEND
from trainers.config.reading import EVERYTHING, Reading
from trainers.errors import ConfigError

Model = TypeVar("Model", bound=BaseModel)

# Shown in place of a regular expression.
PATTERN_MESSAGES = {
    NAME: "must begin with a letter or a digit, and hold only these and . _ -",
    BACKEND: "must name a backend of torch.distributed, as gloo, nccl, or cpu:gloo,cuda:nccl",
    URL: "must be a URL without credentials, as http://host:8265",
}


def validated(
    model: type[Model], content: Mapping[str, Any], reading: Reading = EVERYTHING
) -> tuple[Model | None, list[str]]:
    """Validates against a model, collecting all problems.

    Args:
        model: The pydantic model.
        content: What the file holds.
        reading: What is read of it.

    Returns:
        The validated part, or None and a line for each problem.
    """
    try:
        return model.model_validate(content, context=reading), []
    except ValidationError as error:
        return None, [_describe(problem, model) for problem in error.errors()]


def refuse(problems: Sequence[str], origin: str) -> None:
    """Raises one message with every problem, if there is one.

    Raises:
        ConfigError: there is a problem.
    """
    if problems:
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        raise ConfigError(f"{origin}: {count}\n" + "\n".join(f"  - {problem}" for problem in problems))


def _describe(problem: Any, model: type[BaseModel]) -> str:
    location = [str(step) for step in problem["loc"]]
    name = ".".join(location)
    if problem["type"] == "extra_forbidden":
        return f"{name}: unknown key{_suggest(location, model)}"
    if problem["type"] == "missing":
        return f"{name}: missing; --set {name}=… or write it in the file"
    message = str(problem["msg"]).removeprefix("Value error, ")
    if problem["type"] == "string_pattern_mismatch":
        message = PATTERN_MESSAGES.get(problem["ctx"]["pattern"], message)
    elif problem["type"] == "list_type":
        message = "must be a list, as [a, b]"
    value = problem.get("input")
    # What was written into an environment by mistake may be a secret.
    hidden = isinstance(value, dict | BaseModel) or "runtime_env" in location or problem["type"] == UNSUPPORTED_URL
    shown = "" if hidden else f" (got {value!r})"
    return f"{name}: {message}{shown}" if name else f"{message}"


def _suggest(location: Sequence[str], model: type[BaseModel]) -> str:
    part = _part_at(location[:-1], model)
    names = list(part.model_fields) if part is not None else []
    near = difflib.get_close_matches(location[-1], names, n=1, cutoff=0.5)
    if near:
        return f"; did you mean {'.'.join([*location[:-1], near[0]])}?"
    homes = [f"{name}.{location[-1]}" for name in model.model_fields if location[-1] in _fields_of(name, model)]
    return f"; did you mean {homes[0]}?" if homes else f"; the keys here are {', '.join(names)}"


def _part_at(path: Sequence[str], model: type[BaseModel]) -> type[BaseModel] | None:
    """The part that a path leads to, also by way of a mapping, whose keys are the user's own."""
    annotation: Any = model
    for key in path:
        if get_origin(annotation) is dict:
            annotation = get_args(annotation)[1]
            continue
        part = _model_in(annotation)
        field = part.model_fields.get(key) if part is not None else None
        if field is None:
            return None
        annotation = field.annotation
    return _model_in(annotation)


def _fields_of(name: str, model: type[BaseModel]) -> list[str]:
    part = _model_in(model.model_fields[name].annotation)
    return list(part.model_fields) if part is not None else []


def _model_in(annotation: Any) -> type[BaseModel] | None:
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None
