"""Writes YAML with comments in a readable layout: short values on one line, long commands folded."""

import math
import re
import textwrap
from collections.abc import Iterator, Mapping
from io import StringIO
from typing import Any

import yaml

WIDTH = 110
# Longer lists and mappings have a line for each item; longer texts are folded, at the first space after this width.
_ON_A_LINE = 80
# PyYAML reads these as strings, but Go's YAML (resolve.go), which Kubernetes uses, as booleans of YAML 1.1 or numbers
# of YAML 1.2.
_OTHER_TYPES = re.compile(
    r"(?:[yYnN]|[-+]?(\._*[0-9][0-9_]*|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9_]+)?"
    r"|[-+]?0_*([bB][01_]+|[oO][0-7_]+|[xX][0-9a-fA-F_]+))$"
)


class _Dumper(yaml.SafeDumper):
    """Indents lists, writes no aliases, and quotes what Go's YAML would read as another type."""

    def represent_sequence(self, tag: str, sequence: Any, flow_style: bool | None = None) -> yaml.SequenceNode:
        node = super().represent_sequence(tag, sequence, flow_style)
        if self.default_flow_style is None and sum(len(str(each)) + 2 for each in sequence) > _ON_A_LINE:
            node.flow_style = False
        return node

    def represent_mapping(self, tag: str, mapping: Any, flow_style: bool | None = None) -> yaml.MappingNode:
        node = super().represent_mapping(tag, mapping, flow_style)
        if self.default_flow_style is None and sum(len(f"{key}{mapping[key]}") + 4 for key in mapping) > _ON_A_LINE:
            node.flow_style = False
        return node

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    # PyYAML quotes texts that a block style would change, except unprintable ones.
    lines, style = text.split("\n"), None
    if not all(line.isprintable() for line in lines):
        style = '"'
    elif dumper.default_flow_style is None and not text.startswith((" ", "\n")):
        style = "|" if len(lines) > 1 else ">" if len(text) > _ON_A_LINE and " " in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_multi_representer(str, _represent_text)
_Dumper.add_representer(str, _represent_text)
_Dumper.add_implicit_resolver("!of_go", _OTHER_TYPES, None)


def to_commented_yaml(content: Mapping[str, Any], comments: Mapping[str, str], head: str = "") -> str:
    """Writes a document.

    Args:
        content: Mappings, lists, strings, numbers and booleans.
        comments: Comments above keys, by path of keys joined with `/`; keys in lists have no path.
        head: First comment. Its lines that begin with two spaces are commands, and are not wrapped.
    """
    options: dict[str, Any] = {"width": _ON_A_LINE, "allow_unicode": True}
    root: Any = _Dumper(StringIO(), default_flow_style=None, sort_keys=False, **options).represent_data(dict(content))
    for place, _, value in _entries(root):
        if any(name.startswith(f"{place}/") for name in comments):
            value.flow_style = False
    root.flow_style = False
    text = yaml.serialize(root, Dumper=_Dumper, **options)
    lines = text.split("\n")
    for place, key, _ in reversed([*_entries(yaml.compose(text, yaml.SafeLoader))]):
        if place in comments:
            lines[key.start_mark.line : key.start_mark.line] = _comment(comments[place], " " * key.start_mark.column)
    return "\n".join([*(line for part in head.splitlines() for line in _comment(part, "")), *lines])


def to_flow_yaml(value: Any) -> str:
    """Writes a value on one line, in a form that is valid within `[]` and `{}`."""
    return yaml.dump([value], Dumper=_Dumper, default_flow_style=True, sort_keys=False, width=math.inf)[1:-2]


def _entries(node: yaml.Node | None, above: str = "") -> Iterator[tuple[str, yaml.Node, Any]]:
    """Yields path, key and value of each mapping entry in a node, in document order; skips mappings in lists."""
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        yield f"{above}{key.value}", key, value
        yield from _entries(value, f"{above}{key.value}/")


def _comment(text: str, indent: str) -> list[str]:
    if text.startswith("  "):
        return [f"{indent}# {text}"]
    return textwrap.wrap(text, WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ") or [f"{indent}#"]
