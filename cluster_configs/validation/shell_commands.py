"""Shell text as simple commands, well enough to read options and variables from. `bash -n` checks the syntax."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from cluster_configs.validation.shell_words import Part, as_text, parts_of, substitutions, without_substitutions

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
# A command line inside a word: bash -c '…', ssh host "…".
MAX_NESTED = 3
# Options of `ray start` that take no value (ray/scripts/scripts.py).
RAY_SWITCHES = frozenset(
    {"--head", "--block", "--no-redirect-output", "--ray-debugger-external", "--disable-usage-stats", "--verbose"}
    | {"--enable-resource-isolation", "--no-monitor"}
)
# Ray's command, as a program, a module, or what a variable of that name holds.
_RAY = frozenset({"ray", "ray.scripts.scripts", "$RAY", "${RAY}", "$ray", "${ray}"})
_DECLARE = ("declare", "typeset")
# Reserved words, and what ends that which some of them begin.
_CLOSED_BY = {"if": "fi", "while": "done", "until": "done", "for": "done", "select": "done", "case": "esac", "(": ")"}
_RESERVED = frozenset({"if", "then", "elif", "else", "fi", "while", "until", "do", "done", "esac", "{", "}", "!"})


@dataclass(frozen=True)
class SimpleCommand:
    """One command with its arguments.

    Attributes:
        words: Without quotes, with the values of known variables; no assignments before them, no redirections. None
            where it only assigns.
        assignments: `NAME=value` before the command.
        environment: Variables that were exported before it, with `assignments`.
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


@dataclass(frozen=True)
class Variables:
    """What is known of a shell's variables.

    Attributes:
        exported: Those that its commands get.
        local: Those that only it has.
        all_exported: Whether it exports each that is set (`set -a`).
    """

    exported: Mapping[str, str]
    local: Mapping[str, str]
    all_exported: bool = False

    @property
    def known(self) -> Mapping[str, str]:
        """All of them."""
        return {**self.local, **self.exported}

    def after(self, words: list[str], assigned: Mapping[str, str]) -> "Variables":
        """What is known after a command."""
        program, given = words[0] if words else "", _assignments(words[1:])
        options = words[1 : words.index("--") if "--" in words else None]
        flags = "".join(word for word in options if word[:1] in ("-", "+"))
        if not words or program in ("readonly", "local") or (program in _DECLARE and "x" not in flags):
            return self._with({**assigned, **given})
        if program == "unset" or (program == "export" and "n" in flags):
            exported = {name: value for name, value in self.exported.items() if name not in words}
            local = {name: value for name, value in self.local.items() if name not in words}
            return replace(self, exported=exported, local=local)
        if program in ("export", *_DECLARE):
            named = {name: value for name, value in self.known.items() if name in words}
            return replace(self, exported={**self.exported, **named, **given})
        if program == "set" and ("a" in flags.partition("o")[0] or "allexport" in words):
            return replace(self, all_exported=flags.startswith("-"))
        return self

    def _with(self, assigned: Mapping[str, str]) -> "Variables":
        exported = {name: value for name, value in assigned.items() if self.all_exported or name in self.exported}
        return replace(self, exported={**self.exported, **exported}, local={**self.local, **assigned})


def commands_in(text: str, environment: Mapping[str, str] | None = None, nested: int = 0) -> Iterator[SimpleCommand]:
    """The simple commands of a script, in order, and those inside their arguments after them.

    Variables are known where they are surely set: not after a subshell, a pipe, a loop or a condition that sets them.

    Args:
        text: A script or a command line.
        environment: Variables that it is started with.
        nested: How deep this text lies inside arguments.
    """
    shell, previous = _Shell(Variables(dict(environment or {}), {})), ";"
    parts = [*parts_of(text)]
    for part, following in zip(parts, [*parts[1:], Part()], strict=True):
        if not part.words and part.operator == "\n" and previous in ("&&", "||", "|", "|&"):
            continue  # a list goes on after such a line
        known = shell.now.known
        words = [as_text(word, known) for word in part.words]
        while words and words[0] in _RESERVED:
            shell.read(words.pop(0))
        if words and words[0] in ("for", "case", "select"):
            shell.read(words[0])
        count = next((index for index, word in enumerate(words) if not _ASSIGNMENT.fullmatch(word)), len(words))
        assigned, rest = _assignments(words[:count]), words[count:]
        inherited = _of_env(rest, {**shell.now.exported, **assigned})
        redirected = not part.shown or (part.operator in ("|", "|&") and not _is_tee(following))
        if words:
            yield SimpleCommand(tuple(rest), assigned, inherited, redirected, part.line)
        if nested < MAX_NESTED:
            yield from _inner(part, known, inherited, redirected, nested + 1)
        shell.run(shell.now.after(rest, assigned), previous, part.operator)
        previous = part.operator


class _Shell:
    """What is known at a command.

    Attributes:
        now: Where all commands of its list before it succeeded.
        sure: Whether or not they did.
    """

    def __init__(self, variables: Variables) -> None:
        self.now = self.sure = variables
        self._scopes: list[tuple[str, Variables]] = []  # what ends each, and what was known where it began

    def read(self, reserved: str) -> None:
        """Follows a reserved word, or a bracket."""
        if reserved in _CLOSED_BY:
            self._scopes.append((_CLOSED_BY[reserved], self.now))
        elif self._scopes and reserved == self._scopes[-1][0]:
            self.now = self.sure = self._scopes.pop()[1]
        elif self._scopes and reserved in ("elif", "else", ";;"):
            self.now = self.sure = self._scopes[-1][1]

    def run(self, after: Variables, before: str, operator: str) -> None:
        """Takes what is known after a command that stands between two operators."""
        if before not in ("||", "|", "|&") and operator not in ("|", "|&", "&"):
            self.now = after
            self.sure = self.sure if before == "&&" else after
        self.read(operator)
        if operator != "&&":
            self.now = self.sure


def _inner(
    part: Part, known: Mapping[str, str], environment: Mapping[str, str], redirected: bool, nested: int
) -> Iterator[SimpleCommand]:
    """Commands in substitutions, in arguments that are command lines, and in here-documents."""
    for index, word in enumerate(part.words):
        for text, line in substitutions(word):
            for inner in commands_in(text, environment, nested):
                yield replace(inner, redirected=True, line=line + inner.line)
        argument = without_substitutions(word, known)
        if index and re.search(r"\s", argument):
            for inner in commands_in(argument, environment, nested):
                yield replace(inner, redirected=redirected or inner.redirected, line=part.line)
    for text, line in part.documents:
        for inner in commands_in(text, environment, nested):
            yield replace(inner, line=line + inner.line)


def _is_tee(part: Part) -> bool:
    """Whether a command shows what it gets."""
    return part.shown and part.operator != "|" and [as_text(word, {}) for word in part.words[:1]] == ["tee"]


def _of_env(words: list[str], environment: Mapping[str, str]) -> Mapping[str, str]:
    """The environment of what `env` starts, where it is called."""
    if not words or "env" not in words:
        return environment
    found = dict(environment)
    options = words[words.index("env") + 1 :]
    for option, following in zip(options, [*options[1:], ""], strict=True):
        if option in ("-i", "-", "--ignore-environment"):
            found.clear()
        elif option in ("-u", "--unset"):
            found.pop(following, None)
        elif option.startswith("--unset="):
            found.pop(option.partition("=")[2], None)
        found |= _assignments([option])
    return found


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
                yield RayStart(
                    options_of(words[:end], RAY_SWITCHES),
                    command.environment,
                    command.words[at] == "symmetric-run",
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
