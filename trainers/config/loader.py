"""From YAML text and `--set a.b=c` overrides to a TrainConfig, or to one message that lists every fault."""

import difflib
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError

from trainers.config.schema import NAME, URL, TrainConfig, is_absolute
from trainers.errors import ConfigError

Model = TypeVar("Model", bound=BaseModel)

# What a person reads in the place of a regular expression.
WORDS_FOR_PATTERNS = {
    NAME: "must begin with a letter or a digit, and hold only these and . _ -",
    URL: "must be a URL without credentials, as http://host:8265",
}
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
PATH_FIELDS = (
    ("run", "storage_path"),
    ("data", "train"),
    ("data", "validation"),
    ("data", "test"),
    ("data", "cache_dir"),
    ("model", "name_or_path"),
)


def read_yaml(path: Path) -> dict[str, Any]:
    """Reads a recipe.

    Raises:
        ConfigError: the file is missing, is not YAML, or is not a mapping.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; name a recipe, e.g. jobs/specs/whisper_micro.yaml") from None
    except IsADirectoryError:
        raise ConfigError(f"{path}: a folder; name the recipe in it, e.g. {path / 'recipe.yaml'}") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        words = " ".join(str(error).replace('in "<unicode string>", ', "").split())
        raise ConfigError(f"{path}: cannot be read as YAML: {words}; correct it there") from None
    if not isinstance(content, dict):
        what = "nothing" if content is None else f"a {type(content).__name__}"
        raise ConfigError(f"{path}: holds {what}, not the keys run, data, model, training, …")
    return content


def parse_override(text: str) -> tuple[tuple[str, ...], Any]:
    """Parses `a.b=value`, the value as YAML (`null`, `3`, `[a, b]`).

    Raises:
        ConfigError: there is no `=`, no key, or the value is not YAML.
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {text}: write it as key.subkey=value, e.g. --set training.max_steps=200")
    try:
        return tuple(key.strip().split(".")), yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise ConfigError(f"--set {text}: the value is not YAML: {error}") from None


def override_of(key: str, value: str) -> str:
    """The override that `parse_override` reads as this text, whatever YAML would make of it."""
    try:
        plain = yaml.safe_load(value) == value
    except yaml.YAMLError:
        plain = False
    return f"{key}={value if plain else json.dumps(value, ensure_ascii=False)}"


def apply_overrides(content: Mapping[str, Any], overrides: Sequence[tuple[tuple[str, ...], Any]]) -> dict[str, Any]:
    """Returns a copy of `content` with each (key path, value) set; missing levels are made."""
    result = _copy(content)
    for path, value in overrides:
        level = result
        for key in path[:-1]:
            child = level.get(key)
            level[key] = _copy(child) if isinstance(child, Mapping) else {}
            level = level[key]
        level[path[-1]] = value
    return result


def build_config(
    content: Mapping[str, Any], *, origin: str, environment: Mapping[str, str] | None = None
) -> TrainConfig:
    """Validates the content of a recipe.

    Args:
        content: What the YAML holds, overrides applied.
        origin: Where it came from, for the message.
        environment: Variables that `${NAME}` in paths may name. None: the process's own.

    Raises:
        ConfigError: one message with every fault, each with its field, value and fix.
    """
    expanded, missing = _expand(content, os.environ if environment is None else environment)
    config, faults = validated(TrainConfig, expanded)
    refuse(missing + faults, origin)
    assert config is not None
    return config


def validated(
    model: type[Model], content: Mapping[str, Any], prefix: Sequence[str] = ()
) -> tuple[Model | None, list[str]]:
    """Validates against a model, collecting all faults.

    Args:
        model: The pydantic model.
        content: What the file holds there.
        prefix: Keys above `content`, for the names in the messages.

    Returns:
        The validated part, or None and a line for each fault.
    """
    try:
        return model.model_validate(content), []
    except ValidationError as error:
        return None, [_describe(fault, model, prefix) for fault in error.errors()]


def refuse(faults: Sequence[str], origin: str) -> None:
    """Raises one message with every fault, if there is one.

    Raises:
        ConfigError: there is a fault.
    """
    if faults:
        count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
        raise ConfigError(f"{origin}: {count}\n" + "\n".join(f"  - {fault}" for fault in faults))


def make_paths_absolute(config: TrainConfig, base: Path) -> TrainConfig:
    """Returns the config with every relative path joined to `base`; a Hub id stays as it is."""
    updates: dict[str, dict[str, str]] = {}
    for part, field in PATH_FIELDS:
        value = getattr(getattr(config, part), field)
        if value is None or is_absolute(value) or (field == "name_or_path" and not (base / value).is_dir()):
            continue
        updates.setdefault(part, {})[field] = str((base / value).resolve())
    parts = {part: getattr(config, part).model_copy(update=fields) for part, fields in updates.items()}
    return config.model_copy(update=parts)


def refuse_relative_storage(config: TrainConfig) -> None:
    """Refuses a storage path that, inside a job, would lie in a session copy that Ray deletes.

    Raises:
        ConfigError: run.storage_path or data.cache_dir is relative.
    """
    for part, field in (("run", "storage_path"), ("data", "cache_dir")):
        value = getattr(getattr(config, part), field)
        if value is not None and not is_absolute(value):
            raise ConfigError(
                f"{part}.{field} is {value}, a relative path inside a Ray job: it would lie in the job's copy of the "
                f"working directory, which Ray deletes. Give an absolute folder or s3:// URL (--set {part}.{field}=/…)"
            )


def variables_in(text: str) -> list[str]:
    """Names of the variables that a path refers to as `${NAME}`."""
    return _VARIABLE.findall(text)


def to_yaml(config: TrainConfig) -> str:
    """Renders the whole config, defaults included, in the order of its fields."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def _copy(content: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _copy(value) if isinstance(value, Mapping) else value for key, value in content.items()}


def _expand(content: Mapping[str, Any], environment: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    result, missing = _copy(content), []
    for part, field in PATH_FIELDS:
        value = result[part].get(field) if isinstance(result.get(part), dict) else None
        if not isinstance(value, str):
            continue
        for name in _VARIABLE.findall(value):
            if name not in environment:
                missing.append(
                    f"{part}.{field}: {value} names the variable {name}, which is not set: "
                    f"export {name}=…, or --set {part}.{field}=…"
                )
        expanded = _VARIABLE.sub(lambda match: environment.get(match[1], match[0]), value)
        result[part][field] = str(Path(expanded).expanduser()) if expanded.startswith("~") else expanded
    return result, missing


def _describe(fault: Any, model: type[BaseModel], prefix: Sequence[str]) -> str:
    location = [str(step) for step in fault["loc"]]
    name = ".".join([*prefix, *location])
    if fault["type"] == "extra_forbidden":
        return f"{name}: unknown key{_suggest(location, model, prefix)}"
    if fault["type"] == "missing":
        return f"{name}: missing; --set {name}=… or write it in the file"
    message = str(fault["msg"]).removeprefix("Value error, ")
    if fault["type"] == "string_pattern_mismatch":
        message = WORDS_FOR_PATTERNS.get(fault["ctx"]["pattern"], message)
    elif fault["type"] == "list_type":
        message = "must be a list, as [a, b]"
    value = fault.get("input")
    # What was written into an environment by mistake may be a secret.
    hidden = isinstance(value, dict | BaseModel) or "runtime_env" in location
    shown = "" if hidden else f" (got {value!r})"
    return f"{name}: {message}{shown}" if name else f"{message}"


def _suggest(location: Sequence[str], model: type[BaseModel], prefix: Sequence[str]) -> str:
    part = _part_at(location[:-1], model)
    names = list(part.model_fields) if part is not None else []
    near = difflib.get_close_matches(location[-1], names, n=1, cutoff=0.5)
    if near:
        return f"; did you mean {'.'.join([*prefix, *location[:-1], near[0]])}?"
    homes = [
        ".".join([*prefix, name, location[-1]])
        for name in model.model_fields
        if location[-1] in _fields_of(name, model)
    ]
    return f"; did you mean {homes[0]}?" if homes else f"; the keys here are {', '.join(names)}"


def _part_at(path: Sequence[str], model: type[BaseModel]) -> type[BaseModel] | None:
    part: type[BaseModel] | None = model
    for key in path:
        field = part.model_fields.get(key) if part is not None else None
        part = _model_in(field.annotation) if field is not None else None
    return part


def _fields_of(name: str, model: type[BaseModel]) -> list[str]:
    part = _model_in(model.model_fields[name].annotation)
    return list(part.model_fields) if part is not None else []


def _model_in(annotation: Any) -> type[BaseModel] | None:
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None
