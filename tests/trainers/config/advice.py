"""The message of a recipe that is refused; what it says to set, to remove or to leave out is done, and must help."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml

from trainers.config.loader import build_any_config
from trainers.config.overrides import apply_overrides
from trainers.config.schema import ScriptConfig, TrainConfig
from trainers.errors import ConfigError

KEY = r"[a-z_][\w.-]*"
# `a: 1, or b: null and c: {}`: values that a recipe may hold as they stand.
ASSIGNMENT = rf"({KEY}): (\{{[^}}]*\}}|\[[^\]]*\]|[^\s,;{{\[]+)"
SET = re.compile(rf"\bset ({ASSIGNMENT}(?:,? (?:or|and) {ASSIGNMENT})*)")
ALTERNATIVE = re.compile(r",? or ")
DROPPED = re.compile(rf"\b(?:remove|leave) (?!(?:it|one|them|these)\b)({KEY})(?: out)?(?=$|;|, or )")


def refused(content: Mapping[str, Any], environment: Mapping[str, str] | None = None) -> str:
    """The message of a recipe, which must be refused; each of its fixes must lead past the problem that names it."""
    message = _refusal(content, environment)
    assert message, "the recipe is valid"
    problems = _problems(message)
    for problem in problems:
        for fixed, fix in _followed(content, problem):
            left = _problems(_refusal(fixed, environment))
            assert set(left) <= set(problems) - {problem}, f"{problem}\nleads with {fix!r} to\n{left}"
    return message


def _refusal(content: Mapping[str, Any], environment: Mapping[str, str] | None) -> str:
    try:
        build_any_config(content, origin="my.yaml", environment=environment or {})
    except ConfigError as error:
        return str(error)
    return ""


def _problems(message: str) -> list[str]:
    return [line.removeprefix("  - ") for line in message.splitlines() if line.startswith("  - ")]


def _followed(content: Mapping[str, Any], problem: str) -> Iterator[tuple[dict[str, Any], str]]:
    """The recipe after each fix that a problem names."""
    part = re.split(r"[.:]", problem, maxsplit=1)[0]
    for found in SET.finditer(problem):
        for fix in ALTERNATIVE.split(found[1]):
            values = [(_path(key, part), yaml.safe_load(value)) for key, value in re.findall(ASSIGNMENT, fix)]
            yield apply_overrides(content, values), fix
    for key in DROPPED.findall(problem):
        yield _without(content, _path(key, part)), f"without {key}"


def _path(key: str, part: str) -> tuple[str, ...]:
    steps = tuple(key.split("."))
    return steps if steps[0] in {**TrainConfig.model_fields, **ScriptConfig.model_fields} else (part, *steps)


def _without(content: Mapping[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    result = apply_overrides(content, [])
    level = result
    for key in path[:-1]:
        level = level[key]
    if path[-1] not in level:
        pytest.fail(f"{'.'.join(path)} is not in the recipe, and cannot be left out")
    del level[path[-1]]
    return result
