"""Calls that start Ray, found in shell text by their form. `bash -n` checks the syntax, and nothing is interpreted."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

WORD_PART = r"""(?:"(?:\\.|[^"\\])*"|'[^']*'|[^\s;&|)"'`])"""
_QUOTED_OR_COMMENT = re.compile(r"""("(?:\\.|[^"\\])*"|'[^']*'|\\.)|(?<![^\s;&|()])#[^\n]*""", re.DOTALL)
# By name, module or variable; options of `ray` itself may stand before the subcommand.
_START = re.compile(
    r"(?:(?<![\w.-])ray|\bray\.scripts\.scripts|\$(?:RAY|ray)\b|\$\{(?:RAY|ray)\})"
    r"(?:\s+--\S+(?:[ \t]+(?!start)[^-\s]\S*)?)*[ \t]+(start|symmetric-run)\b"
)
_END = re.compile(rf"\n|\s--\s|{_START.pattern}")
_OPTION = re.compile(rf"(?<!\S)(--[a-z][\w-]*)(?:(?:=|[ \t]+(?!-))({WORD_PART}+))?")
_ASSIGNMENT = re.compile(rf"(?<![\w$-])([A-Za-z_]\w*)=({WORD_PART}*)")
_EXPORT = re.compile(r"\b(?:export|declare -x)\b([^;&|\n]*)")
_DEFAULT = re.compile(r"\$\{\w+:?[-=]([^}$`]*)\}")


@dataclass(frozen=True)
class RayStart:
    """A call of `ray start` or `ray symmetric-run`.

    Attributes:
        options: By name with dashes; a switch has the value "true".
        environment: Variables that were exported before it, anywhere in its script.
        symmetric: Whether it is `ray symmetric-run`.
        line: Counted from 0 in its script.
    """

    options: Mapping[str, str]
    environment: Mapping[str, str]
    symmetric: bool
    line: int

    @property
    def head(self) -> bool:
        return self.symmetric or "--head" in self.options


def command_lines(text: str) -> str:
    """A script without comments, and with a line for each that goes on; every sign stays where it is."""
    bare = _QUOTED_OR_COMMENT.sub(lambda match: match[1] or " " * len(match[0]), text)
    return bare.replace("\\\n", "  ")


def ray_starts_in(text: str, environment: Mapping[str, str]) -> Iterator[RayStart]:
    """The calls that start Ray on a node."""
    lines = command_lines(text)
    for start in _START.finditer(lines):
        before = lines[: start.start()]
        exported = set(re.findall(r"\w+", " ".join(_EXPORT.findall(before))))
        known = {name: _value(value) for name, value in _ASSIGNMENT.findall(before)}
        own = _ASSIGNMENT.findall(re.split(r"[;&|(`\n]", before)[-1])
        arguments = _END.split(lines[start.end() :], maxsplit=1)[0]
        yield RayStart(
            {name: _value(value) or "true" for name, value in _OPTION.findall(arguments)},
            {
                **environment,
                **{name: value for name, value in known.items() if name in exported or "set -a" in before},
                **{name: _value(value) for name, value in own},
            },
            start[1] == "symmetric-run",
            text.count("\n", 0, start.start()),
        )


def unquoted(value: str) -> str:
    """A word without the quotes around its parts."""
    return re.sub(r"""(?<!\\)["']""", "", value)


def _value(word: str) -> str:
    """A word as the shell passes it on: of a parameter with a default, the default."""
    return _DEFAULT.sub(r"\1", unquoted(word))
