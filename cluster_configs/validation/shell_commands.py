"""Shell text as simple commands, well enough to read options and variables from. `bash -n` checks the syntax."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePosixPath

_TOKEN = re.compile(
    r"""
      (?P<space>(?:[ \t\r]|\\\n)+)
    | (?P<newline>\n)
    | (?P<comment>\#[^\n]*)
    | (?P<heredoc><<-?[ \t]*['"]?(?P<tag>\w+)['"]?)
    | (?P<redirect>\d*(?:&>>?|<<<|>>|>\||[<>]&?))
    | (?P<separator>&&|\|\||;;|[;&|()])
    | (?P<word>(?:'[^']*'|"(?:\\.|[^"\\])*"|\\.|[^\s;&|()<>'"\\])+)
    | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_QUOTED = re.compile(r"""'([^']*)'|"((?:\\.|[^"\\])*)"|\\(.)""", re.DOTALL)
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
# A command line inside a word: bash -c '…', ssh host "…".
MAX_NESTED = 3
# Options of `ray start` that take no value (ray/scripts/scripts.py).
RAY_SWITCHES = frozenset(
    {"--head", "--block", "--no-redirect-output", "--ray-debugger-external", "--disable-usage-stats", "--verbose"}
    | {"--enable-resource-isolation", "--no-monitor"}
)


@dataclass(frozen=True)
class SimpleCommand:
    """One command with its arguments.

    Attributes:
        words: Without quotes; no assignments before them, no redirections.
        assignments: `NAME=value` before the command.
        environment: Variables that were exported before it, with `assignments`.
        redirected: Whether its output goes elsewhere: a file, or a pipe.
        line: Of its first word, counted from 0.
    """

    words: tuple[str, ...]
    assignments: Mapping[str, str]
    environment: Mapping[str, str]
    redirected: bool
    line: int

    @property
    def program(self) -> str:
        """Name of what is called, without its folder."""
        return PurePosixPath(self.words[0]).name if self.words else ""


@dataclass(frozen=True)
class RayStart:
    """A call of `ray start` or `ray symmetric-run`.

    Attributes:
        options: By name with dashes; a switch has the value "true".
        environment: Variables that it surely has.
        symmetric: Whether it is `ray symmetric-run`.
        entrypoint: What `symmetric-run` runs.
        line: Counted from 0 in its script.
    """

    options: Mapping[str, str]
    environment: Mapping[str, str]
    symmetric: bool
    entrypoint: tuple[str, ...]
    line: int

    @property
    def head(self) -> bool:
        """Whether it starts a head."""
        return self.symmetric or "--head" in self.options


def commands_in(text: str, environment: Mapping[str, str] | None = None, nested: int = 0) -> Iterator[SimpleCommand]:
    """The simple commands of a script, in order, and those inside their arguments after them.

    Args:
        text: A script or a command line.
        environment: Variables that it is started with.
        nested: How deep this text lies inside arguments.
    """
    exported, local = dict(environment or {}), dict[str, str]()
    for words, redirected, line in _split(text):
        count = next((index for index, word in enumerate(words) if not _ASSIGNMENT.fullmatch(word)), len(words))
        assigned = _assignments(words[:count])
        rest = words[count:]
        if not rest:
            local |= assigned
            exported |= {name: value for name, value in assigned.items() if name in exported}
            continue
        if rest[0] in ("export", "declare", "typeset"):
            exported |= _assignments(rest[1:]) | {name: local[name] for name in rest[1:] if name in local}
        if rest[0] == "unset":
            exported = {name: value for name, value in exported.items() if name not in rest}
        inherited = exported | assigned | (_assignments(rest[1:]) if rest[0] == "env" else {})
        yield SimpleCommand(tuple(rest), assigned, inherited, redirected, line)
        for word in rest[1:] if nested < MAX_NESTED else ():
            if re.search(r"\s", word):
                for inner in commands_in(word, inherited, nested + 1):
                    yield SimpleCommand(inner.words, inner.assignments, inner.environment, redirected, line)


def ray_starts_in(text: str, environment: Mapping[str, str]) -> Iterator[RayStart]:
    """The calls that start Ray on a node.

    Args:
        text: A script or a command line.
        environment: Variables that it is started with.
    """
    for command in commands_in(text, environment):
        names = [PurePosixPath(word).name for word in command.words]
        for index, (name, verb) in enumerate(pairwise(names)):
            if name == "ray" and verb in ("start", "symmetric-run"):
                words = command.words[index + 2 :]
                end = words.index("--") if "--" in words else len(words)
                yield RayStart(
                    options_of(words[:end], RAY_SWITCHES),
                    command.environment,
                    verb == "symmetric-run",
                    words[end + 1 :],
                    command.line,
                )


def options_of(words: tuple[str, ...], switches: frozenset[str] = frozenset()) -> dict[str, str]:
    """The `--name=value` and `--name value` among words; a switch has the value "true"."""
    options: dict[str, str] = {}
    for index, word in enumerate(words):
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            following = words[index + 1] if index + 1 < len(words) else ""
            if not equals:
                value = "true" if name in switches or following.startswith("--") or not following else following
            options[name] = value
    return options


def _assignments(words: list[str]) -> dict[str, str]:
    return {match[1]: match[2] for match in map(_ASSIGNMENT.fullmatch, words) if match}


def _split(text: str) -> Iterator[tuple[list[str], bool, int]]:
    """Words of each command, whether its output goes elsewhere, and its line."""
    words: list[str] = []
    waiting: list[str] = []  # tags of here-documents that begin on the next line
    redirected = skip_next = False
    position = line = first = 0
    while token := _TOKEN.match(text, position):
        kind, found = token.lastgroup, token[0]
        position = token.end()
        if token["heredoc"] is not None:
            waiting.append(token["tag"])
        elif kind == "word":
            if not skip_next:
                first = first if words else line
                words.append(_unquoted(found))
            skip_next = False
        elif kind == "redirect":
            redirected, skip_next = redirected or ">" in found, True
        elif kind in ("newline", "separator"):
            if words:
                yield words, redirected or found == "|", first
            words, redirected, skip_next = [], False, False
        line += found.count("\n")
        if kind == "newline" and waiting:
            body, position = _here_document(text, position, waiting)
            yield from ((inner, away, line + at) for inner, away, at in _split(body))
            line += text[:position].count("\n") - line
    if words:
        yield words, redirected, first


def _here_document(text: str, position: int, tags: list[str]) -> tuple[str, int]:
    begin = position
    while tags and position < len(text):
        end = text.find("\n", position)
        end = len(text) if end < 0 else end
        if text[position:end].strip("\t ") == tags[0]:
            tags.pop(0)
        position = end + 1
    tags.clear()
    return text[begin:position], min(position, len(text))


def _unquoted(word: str) -> str:
    def plain(match: re.Match[str]) -> str:
        if match[1] is not None:
            return match[1]
        if match[2] is not None:
            return re.sub(r"\\([\"\\$`])", r"\1", match[2]).replace("\\\n", "")
        return "" if match[3] == "\n" else match[3]

    return _QUOTED.sub(plain, word)
