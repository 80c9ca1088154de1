"""Parses and applies `--set a.b=value`, which sets a field of a recipe on the command line."""

from collections.abc import Mapping, Sequence
from typing import Any

from trainers.config.strict_loading import YamlError, load_yaml
from trainers.errors import ConfigError

Override = tuple[tuple[str, ...], Any]


def parse_override(text: str) -> Override:
    """Parses `a.b=value`, whose value is YAML (`null`, `3`, `[a, b]`); raises ConfigError if the text is not valid."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {text}: write it as key.subkey=value, e.g. --set training.max_steps=200")
    try:
        return tuple(key.strip().split(".")), load_yaml(value)
    except YamlError as error:
        raise ConfigError(f"--set {text}: the value cannot be read as YAML: {error.reason}") from None


def apply_overrides(content: Mapping[str, Any], overrides: Sequence[Override]) -> dict[str, Any]:
    """Returns a copy of `content` with each (key path, value) set; missing levels are created."""
    result = copy_levels(content)
    for path, value in overrides:
        level = result
        for key in path[:-1]:
            child = level.get(key)
            level[key] = copy_levels(child) if isinstance(child, Mapping) else {}
            level = level[key]
        level[path[-1]] = value
    return result


def copy_levels(content: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a copy of all nested mappings; the values in them are shared."""
    return {key: copy_levels(value) if isinstance(value, Mapping) else value for key, value in content.items()}


def value_at(content: Any, path: Sequence[str]) -> Any:
    """Returns the value at a key path, or None if there is none."""
    for key in path:
        content = content.get(key) if isinstance(content, Mapping) else None
    return content
