"""YAML as nodes that know their line and path; a lookup of an absent key returns an empty node."""

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from trainers.config.strict_loading import StrictLoader, YamlError, yaml_errors


@dataclass(frozen=True)
class SourceLocation:
    """Location of a value in a file: the path of keys and indexes, and the line, counted from 1, if known."""

    path: str = ""
    line: int | None = None

    def __str__(self) -> str:
        line = "" if self.line is None else f"line {self.line}"
        return ", ".join(part for part in (line, self.path) if part) or "the file"


@dataclass(frozen=True)
class Node:
    """A value of a YAML document.

    Attributes:
        value: The value in Python; None for null and for an absent value.
        place: The location; for an absent value, where it would be.
        children: Values of a mapping or a list, by key or index.
        present: True if the file has the value.
    """

    value: Any = None
    place: SourceLocation = SourceLocation()
    children: Mapping[Any, "Node"] = field(default_factory=dict)
    present: bool = True

    def get(self, *keys: str | int) -> "Node":
        """Returns the value under these nested keys; returns an absent node if there is none."""
        node = self
        for key in keys:
            found = node.children.get(key)
            node = found or Node(place=SourceLocation(joined(node.place.path, key), node.place.line), present=False)
        return node

    def items(self) -> Iterator[tuple[str, "Node"]]:
        """Yields keys and values of a mapping; yields nothing for other nodes."""
        if isinstance(self.value, Mapping):
            yield from ((str(key), node) for key, node in self.children.items())

    def elements(self) -> Iterator["Node"]:
        """Yields the elements of a list; yields nothing for other nodes."""
        if isinstance(self.value, list):
            yield from self.children.values()

    def walk(self) -> Iterator["Node"]:
        yield self
        for node in self.children.values():
            yield from node.walk()

    @property
    def text(self) -> str:
        """A scalar as text; empty for null, mappings and lists."""
        if self.value is None or isinstance(self.value, Mapping | list):
            return ""
        return str(self.value).lower() if isinstance(self.value, bool) else str(self.value)

    @property
    def number(self) -> float | None:
        """The value as a number, also if it is a text of one; None if it is not."""
        try:
            return None if isinstance(self.value, bool) else float(self.text)
        except ValueError:
            return None


def joined(path: str, key: str | int) -> str:
    """Returns a path with one more key: `a.b`, `a[0]`."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    return f"{path}.{key}" if path else key


def parse_yaml(text: str) -> list[Node]:
    """Returns the documents of a text except empty ones; raises YamlError like `load_yaml`."""
    documents = []
    with yaml_errors():
        loader = StrictLoader(text)
        while loader.check_node():
            root = loader.get_node()
            assert root is not None
            documents.append(_node(loader, root, ""))
    return [node for node in documents if node.value is not None]


def _node(loader: StrictLoader, node: yaml.Node, path: str) -> Node:
    place = SourceLocation(path, node.start_mark.line + 1)
    children: dict[Any, Node]
    if isinstance(node, yaml.MappingNode):
        entries = _entries(loader, node)
        children = {key: _node(loader, value, joined(path, str(key))) for key, value in entries.items()}
        return Node({key: child.value for key, child in children.items()}, place, children)
    if isinstance(node, yaml.SequenceNode):
        children = {index: _node(loader, value, joined(path, index)) for index, value in enumerate(node.value)}
        return Node([child.value for child in children.values()], place, children)
    return Node(loader.construct_object(node), place)


def _entries(loader: StrictLoader, mapping: yaml.MappingNode) -> dict[Hashable, yaml.Node]:
    loader.flatten_mapping(mapping)
    entries: dict[Hashable, yaml.Node] = {}
    for key, value in mapping.value:
        found = loader.construct_object(key, deep=True)
        if not isinstance(found, Hashable):
            raise YamlError("a key is a list or a mapping", key.start_mark.line + 1)
        entries[found] = value
    return entries
