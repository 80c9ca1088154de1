"""Writes YAML with comments, in the layout that people use: short values on one line, long commands folded."""

import json
import math
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

WIDTH = 110
# Texts that need no quotes in any position, if YAML reads them as the same string.
_PLAIN = re.compile(r"^[A-Za-z0-9/~.$][^,\[\]{}#&*!|>'\"%`\\]*$")

# Strings to PyYAML, but truth values of YAML 1.1 and numbers of YAML 1.2 to Go's YAML (resolve.go).
_OTHER_TYPES = re.compile(
    r"[yYnN]|[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?0([bB][01]+|[oO][0-7]+|[xX][0-9a-fA-F]+)"
)


def is_other_type(text: str) -> bool:
    """Returns True if Kubernetes reads an unquoted text as a truth value or number, although Python reads a string."""
    return _OTHER_TYPES.fullmatch(text.replace("_", "")) is not None


def to_commented_yaml(content: Mapping[str, Any], comments: Mapping[str, str], head: str = "") -> str:
    """Writes a document.

    Args:
        content: Mappings, lists, strings, numbers and booleans.
        comments: Comments above keys, by path of keys joined with `/`; a list's items are not named.
        head: First comment. Its lines that begin with two spaces are commands, and are not wrapped.
    """
    top = [line for part in head.splitlines() for line in _comment(part, "")]
    return "\n".join([*top, *_mapping(content, "", comments, "")]) + "\n"


def _comment(text: str, indent: str) -> list[str]:
    if text.startswith("  "):
        return [f"{indent}# {text}"]
    return textwrap.wrap(text, WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ") or [f"{indent}#"]


def _mapping(content: Mapping[str, Any], path: str, comments: Mapping[str, str], indent: str) -> Iterator[str]:
    for key, value in content.items():
        place = f"{path}/{key}" if path else key
        if place in comments:
            yield from _comment(comments[place], indent)
        commented = any(name.startswith(f"{place}/") for name in comments)
        yield from _entry(f"{_scalar(key)}:", value, place, comments if commented else {}, indent)


def _entry(label: str, value: Any, path: str, comments: Mapping[str, str], indent: str) -> Iterator[str]:
    """Yields the lines of a value after `key:` or `-`."""
    undivided = not value or not isinstance(value, str | Mapping | Sequence)
    line = _on_one_line(value) if undivided or not comments else None
    if line is not None and (undivided or len(f"{indent}{label} {line}") <= WIDTH):
        yield f"{indent}{label} {line}"
    elif isinstance(value, str):
        first, *rest = _block(value, indent)
        yield f"{indent}{label}{first}"
        yield from rest
    elif isinstance(value, Mapping):
        first, *rest = _mapping(value, path, comments, f"{indent}  ")
        if label == "-" and not first.lstrip().startswith("#"):
            yield f"{indent}- {first.lstrip()}"
        else:
            yield from (f"{indent}{label}", first)
        yield from rest
    else:
        yield f"{indent}{label}"
        for item in value:
            yield from _entry("-", item, path, {}, f"{indent}  ")


def _block(text: str, indent: str) -> Iterator[str]:
    """Yields a string after a label, over several lines if they preserve it: as they are, or folded at spaces."""
    lines = text.split("\n")
    if not text or text[0] in " \n" or not all(line.isprintable() and line == line.rstrip() for line in lines):
        yield f" {_quoted(text)}"
    elif len(lines) > 1 and not text.endswith("\n\n"):
        yield f" |{'' if text.endswith(chr(10)) else '-'}"
        yield from (f"{indent}  {line}" if line else "" for line in lines[: -1 if text.endswith("\n") else None])
    elif len(lines) == 1 and "  " not in text:
        yield " >-"
        inner = f"{indent}  "
        yield from textwrap.wrap(
            text, WIDTH, initial_indent=inner, subsequent_indent=inner, break_long_words=False, break_on_hyphens=False
        )
    else:
        yield f" {_quoted(text)}"


def _on_one_line(value: Any) -> str | None:
    """Formats a scalar, or a mapping or list of items without spaces; None if it takes several lines."""
    if isinstance(value, str) and ("\n" in value or "\\" in value or ('"' in value and "'" in value)):
        return None
    if not isinstance(value, Mapping | Sequence) or isinstance(value, str):
        return _scalar(value)
    items = [*value.values()] if isinstance(value, Mapping) else [*value]
    if any(isinstance(item, str) and re.search(r"\s", item) for item in items):
        return None
    parts = [_on_one_line(item) for item in items]
    if None in parts or (
        isinstance(value, Mapping) and any(isinstance(item, Mapping) for item in items) and len(items) > 2
    ):
        return None
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_scalar(key)}: {part}" for key, part in zip(value, parts, strict=True)) + "}"
    return "[" + ", ".join(str(part) for part in parts) + "]"


def _scalar(value: Any) -> str:
    if not isinstance(value, str):
        return yaml.safe_dump(value).removesuffix("...\n").strip()
    if _is_plain(value):
        return value
    return f"'{value}'" if '"' in value and "'" not in value and value.isprintable() else _quoted(value)


def _is_plain(text: str) -> bool:
    """Returns True if YAML reads an unquoted text as the same string, in any position."""
    if not (text.isprintable() and _PLAIN.match(text)) or is_other_type(text):
        return False
    try:
        node = yaml.compose(f"[{text}]", yaml.SafeLoader)
    except yaml.YAMLError:
        return False
    assert isinstance(node, yaml.SequenceNode)
    return [(item.value, item.tag) for item in node.value] == [(text, "tag:yaml.org,2002:str")]


def _quoted(text: str) -> str:
    if text.isprintable():
        return json.dumps(text, ensure_ascii=False)
    # JSON leaves more unprintable characters unescaped than YAML reads.
    return yaml.safe_dump(text, default_style='"', allow_unicode=True, width=math.inf).rstrip("\n")
