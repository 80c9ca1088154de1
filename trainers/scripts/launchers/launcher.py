"""Launchers: how their lines begin, their options, and the parser of their lines.

argparse reads the options, as in most launchers, up to the program; the words after the program are not parsed. So the
parser takes longer and longer beginnings of the line until they contain a program.
"""

import argparse
import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NoReturn

from trainers.errors import ConfigError
from trainers.scripts.launchers.launch_line import ProgramKind, Reading
from trainers.scripts.launchers.launch_option import Option

# Values of the options in a line by `Option.key`; without options that are not given.
Given = Mapping[str, Any]
PROGRAM = "program"
# Number of similar options in a message about an unknown option.
MOST_NAMED = 4


@dataclass(frozen=True)
class Surroundings:
    """The context of a launcher's line.

    Attributes:
        assignments: Variables that the line sets.
        devices: Number of devices that the line makes visible. None: not in the line.
    """

    assignments: Mapping[str, str] = field(default_factory=dict)
    devices: int | None = None


def kind_of(given: Given) -> ProgramKind:
    """Returns the kind of program by a launcher's usual `--module` and `--no_python`.

    Raises:
        ValueError: both are given.
    """
    if given.get("module") and given.get("no_python"):
        raise ValueError("--module and --no_python exclude each other: keep one")
    return "module" if given.get("module") else "executable" if given.get("no_python") else "script"


def as_documented(name: str) -> tuple[str, ...]:
    """Returns only the documented spelling."""
    return (name,)


def dash_or_underscore(name: str) -> tuple[str, ...]:
    """Returns spellings with underscores and dashes: `--nproc_per_node` and `--nproc-per-node`."""
    words = name.lstrip("-")
    dashes = name[: len(name) - len(words)]
    return tuple(dict.fromkeys((name, dashes + words.replace("_", "-"))))


def one_dash_or_two(name: str) -> tuple[str, ...]:
    """Returns spellings with two dashes and one: `--bind-to` and `-bind-to`."""
    return tuple(dict.fromkeys((name, name.removeprefix("-") if name.startswith("--") else name)))


@dataclass(frozen=True)
class Launcher:
    """A launcher whose lines can be read.

    Attributes:
        name: Name in messages, and in LaunchLine.launcher.
        options: All of its options.
        read: Converts the options to a Reading. Raises ValueError if they contradict each other.
        commands: First words of its line: `accelerate launch`.
        modules: Names as a module: `python -m torch.distributed.run`.
        scripts: Names as a file that Python runs.
        spellings: Returns all spellings of an option's name.
        abbreviates: True if an unambiguous prefix of a long name is accepted.
    """

    name: str
    options: tuple[Option, ...]
    read: Callable[[Given, Surroundings], Reading]
    commands: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    scripts: tuple[str, ...] = ()
    spellings: Callable[[str], tuple[str, ...]] = as_documented
    abbreviates: bool = False

    def begun_by(self, word: str) -> list[str]:
        """Returns the long names that a word of a line is a prefix of, one of each option."""
        if not word.startswith("--") or len(word) == len("--"):
            return []
        spelled = ([name for each in option.names for name in self.spellings(each)] for option in self.options)
        begun = ([name for name in names if name.startswith(word)] for names in spelled)
        # A complete name is a prefix of itself, and perhaps of another.
        return [word if word in names else names[0] for names in begun if names]


@dataclass(frozen=True)
class OptionsRead:
    """The parsed options of a line: their values, variables and notes, and the program's words."""

    given: Given
    variables: Mapping[str, str]
    notes: tuple[str, ...]
    words: tuple[str, ...]


class _UnreadableError(Exception):
    pass


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _UnreadableError(message)


def read_options(launcher: Launcher, words: Sequence[str]) -> OptionsRead:
    """Reads the options of a launcher's line, without the launcher's own words.

    Raises:
        ConfigError: lists every unknown or refused option, or says that there is no program.
    """
    values, unknown, rest = _up_to_program(launcher, words)
    options = [option for option in launcher.options if option.key in values]
    problems = [_unknown(launcher, word) for word in unknown]
    problems += [f"{_shown(launcher, o, values)}: {o.text}" for o in options if o.outcome == "refused"]
    if problems:
        raise ConfigError("\n".join(problems))
    return OptionsRead(
        values,
        {option.text: str(values[option.key]) for option in options if option.outcome == "variable"},
        tuple(f"{_shown(launcher, o, values)}: {o.text}" for o in options if o.outcome == "noted"),
        rest,
    )


def _up_to_program(launcher: Launcher, words: Sequence[str]) -> tuple[dict[str, Any], list[str], tuple[str, ...]]:
    """Returns values, words that are not options of the launcher, and the rest of the line from the program on."""
    parser, full = _parser(launcher), [_in_full(launcher, word) for word in words]
    endings = {option.key for option in launcher.options if option.ends}
    problem = "it names no program"
    for end in range(1, len(words) + 1):
        if words[end - 1] == "--":
            continue
        try:
            parsed, unknown = parser.parse_known_args(full[:end])
        except _UnreadableError as error:
            problem = str(error)
            continue
        values = vars(parsed)
        problem = "it names no program" if not unknown else _unknown(launcher, unknown[0])
        if values.pop(PROGRAM) or endings & values.keys():
            return values, unknown, tuple(words[end - 1 :])
    prefix = "" if problem.startswith(launcher.name) else f"{launcher.name}: "
    raise ConfigError(f"{prefix}{problem}: write its options, then the script with its own arguments")


def _in_full(launcher: Launcher, word: str) -> str:
    """Returns a word with the abbreviated name of an option written out."""
    name, equals, value = word.partition("=")
    begun = launcher.begun_by(name) if launcher.abbreviates else []
    return f"{begun[0]}{equals}{value}" if len(begun) == 1 else word


@cache
def _parser(launcher: Launcher) -> argparse.ArgumentParser:
    parser = _Parser(
        prog=launcher.name, add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS, usage=""
    )
    for option in launcher.options:
        names = [spelling for name in option.names for spelling in launcher.spellings(name)]
        if option.read is None:
            parser.add_argument(*names, dest=option.key, action="store_true", default=argparse.SUPPRESS)
        else:
            parser.add_argument(
                *names,
                dest=option.key,
                type=option.read,
                nargs=option.count,
                action="append" if option.repeated else "store",
                choices=option.choices or None,
            )
    parser.add_argument(PROGRAM, nargs=argparse.REMAINDER)
    return parser


def _shown(launcher: Launcher, option: Option, values: Given) -> str:
    shown = f"{launcher.name} {option.name}"
    if option.read is None or option.secret or option.repeated:
        return shown
    return f"{shown} {values[option.key]}"


def _unknown(launcher: Launcher, word: str) -> str:
    given = word.partition("=")[0]
    names = [spelling for option in launcher.options for name in option.names for spelling in launcher.spellings(name)]
    alike = [name for name in names if name.startswith("--") == given.startswith("--")]
    begun = launcher.begun_by(given)
    near = begun or difflib.get_close_matches(given, alike, n=1)
    hint = f"did you mean {' or '.join(near[:MOST_NAMED])}?" if near else "options of the script stand after it"
    # The value may be a secret.
    return f"{launcher.name} {given}: there is no such option; {hint}"
