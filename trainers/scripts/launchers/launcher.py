"""A launcher: how its line begins, its options, and what they say; and how a line is read by them.

The options are read by argparse, as most launchers do it themselves, up to the program: of what follows, nothing is
looked at. So the reader grows the beginning of a line word by word until there is a program in it.
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

# Values of the options of a line by `Option.key`; those that were not given are not there.
Given = Mapping[str, Any]
PROGRAM = "program"
# Options that a message about one that is not known names.
MOST_NAMED = 4


@dataclass(frozen=True)
class Surroundings:
    """What a launcher finds around its line.

    Attributes:
        assignments: Variables that the line sets.
        devices: How many devices the line makes visible. None: it does not say.
    """

    assignments: Mapping[str, str] = field(default_factory=dict)
    devices: int | None = None


def kind_of(given: Given) -> ProgramKind:
    """What a launcher's usual `--module` and `--no_python` say of its program.

    Raises:
        ValueError: both are given.
    """
    if given.get("module") and given.get("no_python"):
        raise ValueError("--module and --no_python exclude each other: keep one")
    return "module" if given.get("module") else "executable" if given.get("no_python") else "script"


def as_documented(name: str) -> tuple[str, ...]:
    """Names are taken as the launcher documents them."""
    return (name,)


def dash_or_underscore(name: str) -> tuple[str, ...]:
    """`--nproc_per_node` and `--nproc-per-node` are one."""
    words = name.lstrip("-")
    dashes = name[: len(name) - len(words)]
    return tuple(dict.fromkeys((name, dashes + words.replace("_", "-"))))


def one_dash_or_two(name: str) -> tuple[str, ...]:
    """`--bind-to` and `-bind-to` are one."""
    return tuple(dict.fromkeys((name, name.removeprefix("-") if name.startswith("--") else name)))


@dataclass(frozen=True)
class Launcher:
    """A variant.

    Attributes:
        name: In messages, and of LaunchLine.launcher.
        options: All that it has.
        read: What the options say. Raises ValueError where they contradict each other.
        commands: First words of its line: `accelerate launch`.
        modules: As a module: `python -m torch.distributed.run`.
        scripts: As a file that Python runs, by its name.
        spellings: All ways to write the name of an option.
        abbreviates: Whether the beginning of a long name that no other option has stands for it.
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
        """The long names of options that a word of a line begins, one of each option."""
        if not word.startswith("--") or len(word) == len("--"):
            return []
        spelled = ([name for each in option.names for name in self.spellings(each)] for option in self.options)
        begun = ([name for name in names if name.startswith(word)] for names in spelled)
        # A name that is written out begins itself, and perhaps another.
        return [word if word in names else names[0] for names in begun if names]


@dataclass(frozen=True)
class OptionsRead:
    """A line's options, read: their values, what follows from each by itself, and the words that are the program's."""

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
    """Reads the options of a launcher's line, which begins after the launcher's own words.

    Raises:
        ConfigError: one message with every option that is unknown or refused, or where there is no program.
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
    """Values, words that are no options of the launcher, and the rest of the line from the program on."""
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
    """A word with the abbreviated name of an option written out; any other as it is."""
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
