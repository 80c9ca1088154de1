"""YAML whose values refer to each other, and name what is made of them: !ref, !new and !apply."""

import importlib
import re
from collections.abc import Mapping
from typing import Any

import yaml

REFERENCE = re.compile(r"<([^<>]+)>")


class _Ref(str):
    """Text with references in angle brackets."""


class _Call:
    """A function or class, and its arguments."""

    def __init__(self, name: str, arguments: Any):
        self.name, self.arguments = name, arguments


class _Loader(yaml.SafeLoader):
    """Leaves tags to `load_hparams`."""


def _ref(loader: yaml.SafeLoader, node: yaml.Node) -> _Ref:
    assert isinstance(node, yaml.ScalarNode)
    return _Ref(loader.construct_scalar(node))


def _call(loader: yaml.SafeLoader, name: str, node: yaml.Node) -> _Call:
    if isinstance(node, yaml.MappingNode):
        return _Call(name, loader.construct_mapping(node, deep=True))
    return _Call(name, loader.construct_sequence(node, deep=True) if isinstance(node, yaml.SequenceNode) else [])


_Loader.add_constructor("!ref", _ref)
for tag in ("!new:", "!apply:"):
    _Loader.add_multi_constructor(tag, _call)


def load_hparams(text: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Reads it, with other values for some of its keys.

    Raises:
        KeyError: an override, or a reference, names no key.
    """
    content: dict[str, Any] = yaml.load(text, _Loader)
    unknown = sorted(set(overrides) - set(content))
    if unknown:
        raise KeyError(f"no such hyperparameters: {', '.join(unknown)}")
    content |= overrides
    resolved: dict[str, Any] = {}

    def value_of(name: str) -> Any:
        if name not in resolved:
            resolved[name] = resolve(content[name])
        return resolved[name]

    def resolve(value: Any) -> Any:
        if isinstance(value, _Ref):
            only = REFERENCE.fullmatch(value)
            return value_of(only[1]) if only else REFERENCE.sub(lambda match: str(value_of(match[1])), value)
        if isinstance(value, _Call):
            module, _, function = value.name.rpartition(".")
            call, arguments = getattr(importlib.import_module(module), function), resolve(value.arguments)
            return call(**arguments) if isinstance(arguments, dict) else call(*arguments)
        if isinstance(value, dict):
            return {key: resolve(item) for key, item in value.items()}
        return [resolve(item) for item in value] if isinstance(value, list) else value

    return {name: value_of(name) for name in content}
