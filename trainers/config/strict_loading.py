"""Reads YAML and JSON strictly: what Python's readers drop, or expand without limit, is an error with its line."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

# PyYAML reads a file of this size in a few seconds. The largest recipe is a few KiB.
MAX_BYTES = 1 << 20
# Aliases let a short file expand to a huge one.
MAX_VALUES = 50_000
MAX_DEPTH = 60

_BETWEEN = re.compile(r"[\s,]*")
_MERGE = "tag:yaml.org,2002:merge"


class YamlError(Exception):
    """A text is not usable YAML. `line` is counted from 1; `excerpt` is that line, with a mark at the error."""

    def __init__(self, reason: str, line: int | None = None, excerpt: str = "") -> None:
        super().__init__(reason if line is None else f"line {line}: {reason}")
        self.reason, self.line, self.excerpt = reason, line, excerpt


def load_yaml_file(path: Path) -> Any:
    """Returns the single document in a UTF-8 file; None if it is empty. Raises OSError; YamlError as `load_yaml`."""
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise YamlError(f"it has more than {MAX_BYTES} bytes, so it is not a file of settings")
    try:
        return load_yaml(content.decode())
    except UnicodeDecodeError as error:
        raise YamlError(f"byte {error.start} is not UTF-8") from error


def load_yaml(text: str) -> Any:
    """Returns the single document in a text; None if the text is empty.

    Raises:
        YamlError: The text is not YAML, has a key twice or a recursive alias, or is nested too deeply or too large
            once aliases are expanded.
    """
    with yaml_errors():
        return StrictLoader(text).get_single_data()


def load_json(text: str) -> Any:
    """Returns the value of a JSON text; raises ValueError if it is not JSON, nested too deeply, or has a key twice."""
    try:
        return _JSON.decode(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def load_json_list(text: str) -> list[tuple[int, Any]]:
    """Returns the values in a JSON list, each with its line (from 1); raises ValueError if the text is not one."""
    if not isinstance(load_json(text), list):
        raise ValueError("it is not a list")
    values, line, end = [], 1, 0
    start = _behind(text, text.index("[") + 1)
    while text[start] != "]":
        line += text.count("\n", end, start)
        value, end = _JSON.raw_decode(text, start)
        values.append((line, value))
        line += text.count("\n", start, end)
        start = _behind(text, end)
    return values


def _behind(text: str, position: int) -> int:
    """Returns the position after any spaces and commas."""
    found = _BETWEEN.match(text, position)
    assert found is not None
    return found.end()


class StrictLoader(yaml.SafeLoader):
    """A loader that refuses invalid input before it constructs any value. Keys merged with `<<` may repeat others."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        # The number of values that a node expands to, and its depth. A node that is still being read has no entry.
        self._extents: dict[yaml.Node, tuple[int, int]] = {}

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        line = event.start_mark.line + 1
        self._depth += 1
        # PyYAML recurses once per level.
        if self._depth > MAX_DEPTH:
            raise YamlError(f"more than {MAX_DEPTH} levels deep", line)
        node = super().compose_node(parent, index)
        assert node is not None
        if isinstance(event, yaml.AliasEvent):
            if node not in self._extents:
                raise YamlError(f"the alias *{event.anchor} is recursive", line)
        else:
            extents = [self._extents[part] for part in _parts(node)]
            values, levels = (list(column) for column in zip(*extents, strict=True)) if extents else ([], [])
            self._extents[node] = 1 + sum(values), 1 + max(levels, default=0)
        count, below = self._extents[node]
        if count > MAX_VALUES:
            raise YamlError(f"more than {MAX_VALUES} values, once aliases are expanded", line)
        if self._depth - 1 + below > MAX_DEPTH:
            raise YamlError(f"more than {MAX_DEPTH} levels deep, once aliases are expanded", line)
        self._depth -= 1
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        mapping = super().compose_mapping_node(anchor)
        lines: dict[str, int] = {}
        for key, _ in mapping.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
                continue
            line = key.start_mark.line + 1
            if key.value in lines:
                where = f"in line {line}" if line == lines[key.value] else f"in lines {lines[key.value]} and {line}"
                raise YamlError(f"duplicate key {key.value} in one mapping, {where}: keep one of them", line)
            lines[key.value] = line
        return mapping


@contextmanager
def yaml_errors() -> Iterator[None]:
    """Returns a context that converts PyYAML's exceptions to YamlError."""
    try:
        yield
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reason = ", ".join(part for part in (error.problem, error.context) if part)
        if mark is None:
            raise YamlError(reason) from error
        raise YamlError(reason, mark.line + 1, mark.get_snippet(indent=4) or "") from error
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise YamlError(" ".join(str(error).split())) from error
    except (LookupError, AttributeError) as error:
        # Raised for `!!int ""`, for example.
        raise YamlError("a value does not fit its tag (!!…)") from error


def _parts(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return node.value if isinstance(node, yaml.SequenceNode) else []


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        repeated, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"duplicate key {repeated!r} in one object: keep one of them")
    return content


# Made once, since each row of a manifest may be a JSON text.
_JSON = json.JSONDecoder(object_pairs_hook=_without_repeats)
