"""Shell text as commands and their words, by `shlex`. Nothing is interpreted: scopes, conditions and loops are ignored.

`bash -n` checks the syntax.
"""

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import PurePosixPath

# A command line inside a word: bash -c '…', ssh host "…", $(…).
MAX_NESTED = 3
# Options of `ray start` that take no value (ray/scripts/scripts.py).
RAY_SWITCHES = frozenset(
    {"--head", "--block", "--no-redirect-output", "--ray-debugger-external", "--disable-usage-stats", "--verbose"}
    | {"--enable-resource-isolation", "--no-monitor"}
)
_RAY = frozenset({"ray", "ray.scripts.scripts", "$RAY", "${RAY}", "$ray", "${ray}"})
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_PARAMETER = re.compile(r"\$\{?(?P<name>\w+)(?::?[-=](?P<default>[^}$`]*))?\}?")
_SUBSTITUTION = re.compile(r"\$\(\([^()]*\)\)|[$<>]\((?P<new>[^()]*)\)|`(?P<old>[^`]*)`")
_QUOTED_OR_COMMENT = re.compile(r"""("(?:\\.|[^"\\])*"|'[^']*'|\\.)|(?<![^\s;&|()])#[^\n]*""", re.DOTALL)
_CONTINUED = re.compile(r"(?:[^\n]*\\\n)+[^\n]*")
_OPERATORS = "();<>|&\n"
_RESERVED = frozenset({"if", "then", "elif", "else", "while", "until", "do", "{", "!"})
# Files that are shown where the command runs.
_SHOWN = ("/dev/stdout", "/dev/stderr", "/dev/tty")


@dataclass(frozen=True)
class SimpleCommand:
    """One command with its arguments.

    Attributes:
        words: Without quotes, with the values of known variables; no assignments before them, no redirections.
        assignments: `NAME=value` before the command.
        environment: Variables that were exported before it in its script, with `assignments`.
        redirected: Whether its output goes elsewhere: a file, a pipe, or a word.
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
        environment: Variables that were exported before it.
        symmetric: Whether it is `ray symmetric-run`.
        line: Counted from 0 in its script.
    """

    options: Mapping[str, str]
    environment: Mapping[str, str]
    symmetric: bool
    line: int

    @property
    def head(self) -> bool:
        """Whether it starts a head."""
        return self.symmetric or "--head" in self.options


def commands_in(text: str, environment: Mapping[str, str] | None = None, nested: int = 0) -> Iterator[SimpleCommand]:
    """The commands of a script, in order, and those inside their words.

    Args:
        text: A script or a command line.
        environment: Variables that it is started with.
        nested: How deep this text lies inside words.
    """
    exported, local = dict(environment or {}), dict[str, str]()
    text, substitutions = _without_substitutions(_QUOTED_OR_COMMENT.sub(lambda match: match[1] or "", text))
    parts = [*_parts(text)]
    for (found, to_file, operator, line), following in zip_longest(parts, parts[1:]):
        words = [_expanded(word, local | exported) for word in found]
        while words and words[0] in _RESERVED:
            words.pop(0)
        assigned: dict[str, str] = {}
        while words and (match := _ASSIGNMENT.fullmatch(words[0])):
            assigned[match[1]] = match[2]
            words.pop(0)
        is_shown_later = following is not None and following[0][:1] == ["tee"]
        redirected = to_file or (operator == "|" and not is_shown_later)
        if words[:1] == ["env"]:
            assigned |= _assignments(words[1:])
        if words or assigned:
            yield SimpleCommand(tuple(words), assigned, exported | assigned, redirected, line)
        for word in words[1:] if nested < MAX_NESTED else ():
            if re.search(r"\s", word):
                yield from (replace(one, line=line) for one in commands_in(word, exported | assigned, nested + 1))
        if words[:1] == ["export"] or words[:2] == ["declare", "-x"]:
            exported |= {name: local[name] for name in words if name in local} | _assignments(words)
        elif words[:2] == ["set", "-a"]:
            local = exported
        elif not words:
            local |= assigned
    for inner, line in substitutions if nested < MAX_NESTED else ():
        for one in commands_in(inner, exported, nested + 1):
            yield replace(one, redirected=True, line=line)


def ray_starts_in(text: str, environment: Mapping[str, str]) -> Iterator[RayStart]:
    """The calls that start Ray on a node.

    Args:
        text: A script or a command line.
        environment: Variables that it is started with.
    """
    for command in commands_in(text, environment):
        for index, word in enumerate(command.words):
            at = index + 1
            if PurePosixPath(word).name not in _RAY:
                continue
            while command.words[at : at + 1] and command.words[at].startswith("-"):
                at += 1 if "=" in command.words[at] else 2
            if command.words[at : at + 1] in (("start",), ("symmetric-run",)):
                words = command.words[at + 1 :]
                end = words.index("--") if "--" in words else len(words)
                options = _options_of(words[:end])
                yield RayStart(options, command.environment, command.words[at] == "symmetric-run", command.line)


def _without_substitutions(text: str) -> tuple[str, list[tuple[str, int]]]:
    """A text with a parameter in place of each `$(…)`, and what stood in them, with its line."""
    inner: list[tuple[str, int]] = []
    found = 1
    while found:
        matches = _SUBSTITUTION.finditer(text)
        inner += [(match["new"] or match["old"] or "", text.count("\n", 0, match.start())) for match in matches]
        text, found = _SUBSTITUTION.subn("$_", text)
    return text, inner


def _parts(text: str) -> Iterator[tuple[list[str], bool, str, int]]:
    """For each part up to an operator: its words, whether its output goes to a file, the operator, and its line."""
    words, redirected, redirect, line = list[str](), False, "", 0
    for token, number in _tokens(text):
        if token and set(token) <= set(_OPERATORS):
            if "<" in token or ">" in token:
                # `2>` is of errors.
                redirect = "<" if words[-1:] == ["2"] else token
                continue
            yield words, redirected, token.strip("\n"), line
            words, redirected, redirect = [], False, ""
        elif redirect:
            redirected = redirected or (">" in redirect and not redirect.endswith(">&") and token not in _SHOWN)
            redirect = ""
        else:
            line = line if words else number
            words.append(token)
    yield words, redirected, "", line


def _tokens(text: str) -> Iterator[tuple[str, int]]:
    """Words and operators with their lines, counted from 0; after a quote that is not closed, what blanks separate."""
    # A line that goes on ends where its last part ends, so that those after it keep their numbers.
    text = _CONTINUED.sub(lambda match: match[0].replace("\\\n", " ") + "\n" * match[0].count("\\\n"), text)
    lexer = shlex.shlex(text, posix=True, punctuation_chars=_OPERATORS)
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    line = 0
    try:
        for token in lexer:
            yield token, line
            line += token.count("\n")
    except ValueError:
        yield from ((word, line) for row in text.splitlines() for word in [*row.split(), "\n"])


def _expanded(word: str, known: Mapping[str, str]) -> str:
    """A word with the values of its parameters where they are known."""
    return _PARAMETER.sub(lambda match: known.get(match["name"], match["default"]) or match[0], word)


def _options_of(words: tuple[str, ...]) -> dict[str, str]:
    options: dict[str, str] = {}
    for word, following in zip_longest(words, words[1:], fillvalue=""):
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            is_switch = name in RAY_SWITCHES or following.startswith("--") or not following
            options[name] = value if equals else "true" if is_switch else following
    return options


def _assignments(words: list[str]) -> dict[str, str]:
    return {match[1]: match[2] for match in map(_ASSIGNMENT.fullmatch, words) if match}
