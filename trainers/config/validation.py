"""Validates a config against its model: one message lists every problem with its field, value and fix."""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError

from trainers.config.family_table import decode_parts, family_parts
from trainers.config.overrides import copy_levels
from trainers.config.parts.decode_part import DecodePart
from trainers.config.parts.model_part import ModelPart
from trainers.config.parts.part import RULE, TRAIN_SCOPE, UNSUPPORTED_URL, URL, ConfigScope
from trainers.config.parts.run_part import NAME, RESUME
from trainers.config.parts.scaling_part import BACKEND, COUNT, RANGE
from trainers.config.storage_location import without_password
from trainers.config.wording import counted
from trainers.errors import ConfigError, RayscribeError

Model = TypeVar("Model", bound=BaseModel)

# Keys whose values messages do not show, since secrets may have been written there by mistake.
KEPT_OUT_OF_MESSAGES = frozenset({"runtime_env", "secrets", "exports", "setup"})
# A request of a megabyte may have 200,000 problems; a person fixes the first ones first.
MAX_PROBLEMS = 100
_MISSING, _MEANT = ": missing; ", "; did you mean "
_WORD = re.compile(r"\w+")
# Types of errors that have no value to remove.
_KEPT = ("missing", RULE)
# Messages that are shown instead of a regular expression.
PATTERN_MESSAGES = {
    NAME: "must begin with a letter or a digit, and hold only these and . _ -",
    RESUME: "must be auto, never, or from:<checkpoint>, an absolute folder or URL",
    BACKEND: "must name a backend of torch.distributed, as gloo, nccl, or cpu:gloo,cuda:nccl",
    URL: "must be a URL without credentials, as http://host:8265",
}


def validated(
    model: type[Model], content: Mapping[str, Any], scope: ConfigScope = TRAIN_SCOPE
) -> tuple[Model | None, list[str]]:
    """Returns the part that a model reads from content, or None, and a line for each problem; None if there are any."""
    found, problems = examined(model, content, scope)
    return (None if problems else found), problems


def examined(
    model: type[Model], content: Mapping[str, Any], scope: ConfigScope = TRAIN_SCOPE
) -> tuple[Model | None, list[str]]:
    """Returns the part that a model reads from content, and a line for each problem.

    pydantic checks fields together only if each field is valid. To report all problems at once, this validates again
    without the invalid values and the rules that failed. The part then has defaults in these places, so that callers
    can look for more problems in it; it is None if there is no such part.
    """
    left: dict[str, Any] = copy_levels(content)
    lines: list[str] = []
    unusable: set[str] = set()
    while True:
        try:
            return model.model_validate(left, context=scope), lines
        except ValidationError as error:
            problems = error.errors()
        except (LookupError, TypeError, AttributeError, ArithmeticError):
            # Raised by a rule that relies on a rule that was skipped.
            if lines:
                return None, lines
            raise
        # Problems with a removed value, which is not there to check, are left out.
        found = [line for line in _lines(problems, model) if unusable.isdisjoint(_WORD.findall(line))]
        # Each round reports missing fields again.
        lines = list(dict.fromkeys([*lines, *found]))
        if len(lines) >= MAX_PROBLEMS or len(problems) > MAX_PROBLEMS:
            return None, [*lines[:MAX_PROBLEMS], "further problems are shown when these are fixed"]
        rules = {problem["ctx"]["rule"] for problem in problems if problem["type"] == RULE} - scope.passed_over
        scope = replace(scope, passed_over=scope.passed_over | rules)
        removed = [_remove(left, _steps(problem), model) for problem in problems if problem["type"] not in _KEPT]
        unusable |= {name for name in removed if name is not None}
        unusable |= {line.rpartition(_MEANT)[2].rpartition(".")[2].rstrip("?") for line in found if _MEANT in line}
        if not rules and not any(removed):
            return None, lines


def _lines(problems: Sequence[Any], model: type[BaseModel]) -> list[str]:
    lines: list[str] = []
    for problem in problems[:MAX_PROBLEMS]:
        name = ".".join(_walk(_steps(problem), model)[0])
        of_rule = problem["ctx"]["problems"] if problem["type"] == RULE else ()
        lines += [f"{name}: {text}" if name else text for text in of_rule] or [_described(problem, model)]
    # A misspelled key is one problem, so the field that it means is not reported as missing.
    meant = {line.rpartition(_MEANT)[2] for line in lines}
    return [line for line in lines if f"{line.partition(_MISSING)[0]}?" not in meant]


def _steps(problem: Any) -> list[str]:
    """Returns the problem's location as pydantic has it, without the kinds of `num_workers`."""
    return [str(step) for step in problem["loc"] if step not in (COUNT, RANGE)]


def _remove(content: dict[str, Any], steps: Sequence[str], model: type[BaseModel]) -> str | None:
    """Removes the value at a location, or the list that contains it; returns the removed key; None if there is none."""
    place: Any = content
    *above, last = _walk(steps, model)[0] or [""]
    for step in above:
        if not isinstance(place.get(step), dict):
            last = step
            break
        place = place[step]
    return last if place.pop(last, None) is not None else None


def refuse(problems: Sequence[str], origin: str) -> None:
    """Raises ConfigError with every problem, if there are any."""
    if problems:
        raise ConfigError(_listed(problems, origin))


def _listed(problems: Sequence[str], origin: str) -> str:
    return f"{origin}: {counted(len(problems), 'problem')}\n" + "\n".join(f"  - {problem}" for problem in problems)


class Problems:
    """Collects errors to raise together: a block in `with problems:` ends at its first error, which is added."""

    def __init__(self) -> None:
        self.found: list[RayscribeError] = []

    def __enter__(self) -> None:
        """Does nothing."""

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if isinstance(error, RayscribeError):
            self.found.append(error)
        return isinstance(error, RayscribeError)

    def refuse(self, origin: str) -> None:
        """Raises the collected errors, if there are any.

        Raises:
            RayscribeError: A single error is raised unchanged. Several become one, whose message begins with `origin`.
                Its type is that of the first error that a retry may resolve, else ConfigError if one of them has it,
                else that of the first.
        """
        if len(self.found) == 1:
            raise self.found[0]
        if self.found:
            kinds = [type(each) for each in self.found]
            passing = (kind for kind in kinds if not kind.final)
            kind = next(passing, ConfigError if ConfigError in kinds else kinds[0])
            raise kind(_listed([str(each) for each in self.found], origin))


def _described(problem: Any, model: type[BaseModel]) -> str:
    steps = _steps(problem)
    location = _walk(steps, model)[0]
    name = ".".join(location)
    if problem["type"] == "extra_forbidden":
        return f"{name}: unknown key{_suggest(steps, model)}"
    if problem["type"] == "union_tag_not_found":
        name = f"{name}.{problem['ctx']['discriminator'].strip(chr(39))}"
    if problem["type"] in ("missing", "union_tag_not_found"):
        return f"{name}{_MISSING}--set {name}=… or write it in the file"
    message = str(problem["msg"]).removeprefix("Value error, ")
    value = problem.get("input")
    if problem["type"] == "union_tag_invalid":
        kind = problem["ctx"]["discriminator"].strip("'")
        return f"{name}.{kind}: must be one of {problem['ctx']['expected_tags']} (got '{problem['ctx']['tag']}')"
    if problem["type"] == "string_pattern_mismatch":
        pattern = problem["ctx"]["pattern"]
        message = PATTERN_MESSAGES.get(URL if pattern.startswith(URL) else pattern, message)
    elif problem["type"] in ("model_type", "model_attributes_type", "dict_type"):
        message = "must be a mapping of keys to values"
    elif problem["type"] == "list_type":
        message = "must be a list, as [a, b]"
    elif value is None:
        return f"{name}: is empty; --set {name}=… or write it in the file"
    # A mapping is not shown, since it may have a secret that was written there by mistake.
    hidden = isinstance(value, dict | BaseModel) or problem["type"] == UNSUPPORTED_URL
    if problem["type"] == "string_pattern_mismatch" and problem["ctx"]["pattern"].startswith(URL):
        value = without_password(str(value))
    shown = "" if hidden or not KEPT_OUT_OF_MESSAGES.isdisjoint(location) else f" (got {value!r})"
    return f"{name}: {message}{shown}" if name else f"{message}"


def _suggest(steps: Sequence[str], model: type[BaseModel]) -> str:
    *path, key = steps
    shown, parts = _walk(path, model)
    names = list(dict.fromkeys(name for part in parts for name in part.model_fields))
    near = difflib.get_close_matches(key, names, n=1, cutoff=0.5)
    if near:
        return f"{_MEANT}{'.'.join([*shown, near[0]])}?"
    homes = [
        f"{name}.{key}"
        for name, field in model.model_fields.items()
        if any(key in part.model_fields for part in _models_in(field.annotation))
    ]
    return f"{_MEANT}{homes[0]}?" if homes else f"; the keys here are {', '.join(names)}"


def _walk(path: Sequence[str], model: type[BaseModel]) -> tuple[list[str], list[type[BaseModel]]]:
    """Returns one of pydantic's paths as the user writes it, and the parts that it leads to, one of each family.

    The result has no names of kinds, which pydantic adds for a part that has several (`ray_up.local.head_ip`).
    """
    annotation: Any = model
    shown = []
    for key in path:
        parts = _models_in(annotation)
        # pydantic names no kinds of models and decoders.
        has_kinds = len(parts) > 1 and annotation not in (ModelPart, DecodePart)
        chosen = [part for part in parts if has_kinds and key in _kinds_of(part)]
        if chosen:
            annotation = chosen[0]
            continue
        shown.append(key)
        if get_origin(annotation) is dict:
            annotation = get_args(annotation)[1]
        elif get_origin(annotation) is tuple and key.isdecimal():
            annotation = get_args(annotation)[0]
        else:
            field = parts[0].model_fields.get(key) if parts else None
            annotation = None if field is None else field.annotation
    return shown, _models_in(annotation)


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    """Returns the kinds of parts that a field may have; empty for a mapping of parts, whose keys come first."""
    if annotation in (ModelPart, DecodePart):
        return [*dict.fromkeys((family_parts() if annotation is ModelPart else decode_parts()).values())]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    inner = () if get_origin(annotation) in (dict, list) else get_args(annotation)
    return [part for item in inner for part in _models_in(item)]


def keys_of(model: type[BaseModel], above: str = "") -> Iterator[str]:
    """Yields every key of a part and of the parts in it, such as `training.max_steps`."""
    for name, field in model.model_fields.items():
        parts = _models_in(field.annotation)
        if not (parts and isinstance(field.annotation, type)):
            yield f"{above}{name}"
        for part in parts:
            yield from keys_of(part, f"{above}{name}.")


def description_of(name: str, model: type[BaseModel]) -> str:
    """Returns the description of a field by its dotted name; "" if there is none."""
    *path, last = name.split(".")
    fields = (part.model_fields[last] for part in _walk(path, model)[1] if last in part.model_fields)
    return next((field.description or "" for field in fields), "")


def _kinds_of(part: type[BaseModel]) -> set[Any]:
    """Returns the values of the fields that name the kind of a part."""
    annotations = [field.annotation for field in part.model_fields.values()]
    return {value for each in annotations if get_origin(each) is Literal for value in get_args(each)}
