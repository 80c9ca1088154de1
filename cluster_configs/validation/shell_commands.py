"""Finds the commands that start Ray in shell text by regular expressions; does not check the syntax."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

# Keeps a value that doubles with each assignment small.
LONGEST_VALUE = 1000
_QUOTED = r"""(?:"(?:\\.|[^"\\])*"|'[^']*')"""
_SUBSTITUTION = r"\$\((?:[^()]|\((?:[^()]|\([^()]*\))*+\))*+\)"
WORD_PART = rf"""(?:{_QUOTED}|{_SUBSTITUTION}|[^\s;&|)"'`])"""
_QUOTED_OR_COMMENT = re.compile(rf"({_QUOTED}|\\.)|(?<![^\s;&|()])#[^\n]*", re.DOTALL)
_WITHIN = re.compile(rf"""({_SUBSTITUTION})|"((?:\\.|[^"\\])*)"|'([^']*)'""", re.DOTALL)
# `ray` by name, module or variable; its own options may be before the subcommand.
_START = re.compile(
    r"(?:(?<![\w.-])ray|\bray\.scripts\.scripts|\$(?:RAY|ray)\b|\$\{(?:RAY|ray)\})"
    r"(?:\s+--\S+(?:[ \t]+(?!start)[^-\s]\S*)?){0,4}[ \t]+(start|symmetric-run)\b"
)
_END = re.compile(rf"\n|;|&&|\|\||\s--\s|{_START.pattern}")
_OPTION = re.compile(rf"(?<!\S)(--[a-z][\w-]*)(?:(?:=|[ \t]+(?!-))({WORD_PART}+))?")
_ASSIGNMENT = re.compile(rf"(?<![\w$-])([A-Za-z_]\w*)=({WORD_PART}*)")
_EXPORT = re.compile(r"\b(?:export|declare -x)\b([^;&|\n]*)")
_PARAMETER = re.compile(r"\$\{?(\w+)(?::?[-=]([^}$`]*))?\}?")


@dataclass(frozen=True)
class RayStart:
    """A command `ray start` or `ray symmetric-run`.

    Attributes:
        options: By name with dashes; a switch has the value "true".
        environment: Variables that its script has exported before it, or that it sets itself.
        symmetric: True for `ray symmetric-run`.
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
    """Returns a script without comments, and with continued lines joined; every character keeps its position."""
    bare = _QUOTED_OR_COMMENT.sub(lambda match: match[1] or " " * len(match[0]), text)
    return bare.replace("\\\n", "  ")


def ray_starts_in(text: str, environment: Mapping[str, str]) -> Iterator[RayStart]:
    """Yields the commands that start Ray on a node."""
    lines = command_lines(text)
    known, exported, exports_all, position = dict(environment), set(environment), False, 0
    for start in _START.finditer(lines):
        before, position = lines[position : start.start()], start.end()
        for name, value in _ASSIGNMENT.findall(before):
            known[name] = _expanded(value, known)
        exported |= set(re.findall(r"(?<!\S)[A-Za-z_]\w*", " ".join(_EXPORT.findall(before))))
        exports_all = exports_all or "set -a" in before
        own = dict(_ASSIGNMENT.findall(re.split(r"[;&|(`\n]", before)[-1]))
        end = _END.search(lines, start.end())
        arguments = _OPTION.findall(lines, start.end(), end.start() if end is not None else len(lines))
        yield RayStart(
            {name: _expanded(value, known) or "true" for name, value in arguments},
            {name: value for name, value in known.items() if exports_all or name in exported or name in own},
            start[1] == "symmetric-run",
            text.count("\n", 0, start.start()),
        )


def unquoted(value: str) -> str:
    """Returns a word without the quotes around its parts; `$(…)` is kept."""

    def within(part: re.Match[str]) -> str:
        return part[1] or part[3] or re.sub(r"\\([\"\\])", r"\1", part[2] or "")

    return _WITHIN.sub(within, value)


def _expanded(word: str, known: Mapping[str, str]) -> str:
    """Returns a word after the shell's expansion; parameters without a known or default value stay as they are."""
    text = unquoted(word)
    expanded = _PARAMETER.sub(lambda match: known.get(match[1], match[2]) or match[0], text)
    return expanded if len(expanded) <= LONGEST_VALUE else text[:LONGEST_VALUE]
