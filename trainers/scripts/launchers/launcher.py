"""A launcher as data (how its lines begin, and what each of its options becomes here), and a parser of its lines.

argparse reads the options up to the program, as in most launchers; the words after the program are not parsed. So the
parser tries longer and longer beginnings of the line until one contains a program.
"""

import argparse
import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, NoReturn

from runtime_env.credentials import name_looks_secret
from trainers.errors import ConfigError

Device = Literal["cpu", "gpu", "hpu"]
ProgramKind = Literal["script", "module", "executable"]
# The launcher of a line without one.
PLAIN = "python"
Outcome = Literal["ours", "variable", "noted", "refused"]
# Values of the options that a line has, by `Option.name`; True for a switch.
Given = Mapping[str, Any]
PROGRAM = "program"
# Arguments of argparse by `Option.values`.
_VALUES: Mapping[str, Mapping[str, Any]] = {
    "": {"action": "store_true"},
    "=": {},
    "=*": {"action": "append"},
    "=2*": {"action": "append", "nargs": 2},
    "=...": {"nargs": argparse.REMAINDER},
}
# Variables that list the devices of a process, by the kind of device.
VISIBLE: Mapping[str, Device] = {
    "CUDA_VISIBLE_DEVICES": "gpu",
    "HIP_VISIBLE_DEVICES": "gpu",
    "ROCR_VISIBLE_DEVICES": "gpu",
    "HABANA_VISIBLE_MODULES": "hpu",
    "HABANA_VISIBLE_DEVICES": "hpu",
}


@dataclass(frozen=True)
class Program:
    """The program of each worker.

    Attributes:
        kind: A Python file, a module for `python -m`, or an executable that is not Python.
        name: Path, or dotted name of the module.
    """

    kind: ProgramKind
    name: str
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True)
class Workers:
    """The number of workers in a line: in total at least and at most, which differ if elastic, and on each node."""

    min: int
    max: int
    per_node: int | None = None


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The meaning of a launcher's own options.

    Attributes:
        assignments: Environment variables that the line sets for the program, in front or by `-x`.
        variables: Environment variables that the launcher would set for the program, by its options.
        workers: Number of workers; None if not in the line, as with one worker for each device of a machine.
        device: The device of workers; None if not in the line.
        notes: Parts of the line without effect here, each with the reason.
    """

    assignments: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    workers: Workers | None = None
    device: Device | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class LaunchLine(Reading):
    """A parsed line.

    Attributes:
        launcher: Name of the launcher (torchrun, deepspeed, …); PLAIN if the program is started without a launcher.
        program: The program of each worker.
        max_retries: How often failed workers are restarted; None if not in the line.
        local_rank_option: Option that the launcher gives the program in front of its arguments, with `=` and the local
            rank; None if the program reads LOCAL_RANK.
        interpreter: The Python in the line; None if the line has none.
    """

    launcher: str
    program: Program
    max_retries: int | None = None
    local_rank_option: str | None = None
    interpreter: str | None = None

    @property
    def environment(self) -> dict[str, str]:
        """All variables that the line sets for the program; the launcher's override those in front of the line."""
        return {**self.assignments, **self.variables}


@dataclass(frozen=True)
class Option:
    """An option of a launcher.

    Attributes:
        names: All of its names; see `Launcher.spelled` for other spellings.
        outcome: "ours" if the launcher's `read` uses it; "variable" if it sets a variable of the program; "noted" if it
            has no effect here (though `read` may use its value); "refused" if the line cannot be run here.
        text: For a variable, its name; for a noted or refused option, why, and what to write instead.
        values: "" for a switch; "=" for a value, of which the last counts; "=*" for values that are all kept; "=2*" for
            pairs that are all kept; "=..." for the program and its arguments.
        setting: Value of the variable without the option or, for a switch, with it.
        under: Name of the switch without which the launcher ignores the option.
    """

    names: tuple[str, ...]
    outcome: Outcome
    text: str = ""
    values: str = ""
    setting: str | None = None
    under: str | None = None

    @property
    def name(self) -> str:
        """The first long name, or the only name."""
        return next((name for name in self.names if name.startswith("--")), self.names[0])

    def variable(self, given: Given) -> str | None:
        """Returns the value of its variable; None if the launcher does not set the variable."""
        if self.under is not None and self.under not in given:
            return None
        if not self.values:
            return self.setting if self.name in given else None
        value: str | None = given.get(self.name, self.setting)
        return value


def ours(names: str) -> tuple[Option, ...]:
    """Returns options that a launcher's `read` uses, each with all of its names: `-m/--module --nnodes=`."""
    return _each("ours", "", names)


def noted(why: str, names: str, prefix: str = "") -> tuple[Option, ...]:
    """Returns options without effect; `{}` in the reason is the name without the prefix, in capitals."""
    return _each("noted", why, names, prefix)


def refused(why: str, names: str, prefix: str = "") -> tuple[Option, ...]:
    """Returns options that are refused; for `{}` see `noted`."""
    return _each("refused", why, names, prefix)


def variables(rows: str, under: str | None = None) -> tuple[Option, ...]:
    """Returns options that set variables of the program; a row has an option, its variable, and maybe a `setting`."""
    found = []
    for row in rows.strip().splitlines():
        names, variable, *setting = row.split()
        spelled, equals, _ = names.partition("=")
        found.append(Option((spelled,), "variable", variable, equals, setting[0] if setting else None, under))
    return tuple(found)


def _each(outcome: Outcome, text: str, names: str, prefix: str = "") -> tuple[Option, ...]:
    found = []
    for each in names.split():
        spelled, equals, kind = each.partition("=")
        own = tuple(f"{prefix}{name}" for name in spelled.split("/"))
        found.append(Option(own, outcome, text.format(spelled.upper()), equals + kind))
    return tuple(found)


def count_of(given: Given, name: str, least: int = 1, also: str = "") -> int | None:
    """Returns the number of an option; None without the option. Raises ValueError if its text is not a number."""
    text = given.get(name)
    if text is None:
        return None
    if not text.isdecimal() or int(text) < least:
        raise ValueError(f"{name} {text}: write a whole number of at least {least}{also}")
    return int(text)


def with_underscores(word: str) -> str:
    """Returns the documented spelling of a name with dashes, such as `--nproc-per-node`."""
    return f"--{word[2:].replace('-', '_')}" if word.startswith("--") else word


def with_two_dashes(word: str) -> str:
    """Returns the documented spelling of a long name with one dash, such as `-bind-to`."""
    return f"-{word}" if re.match(r"-[^-].", word) else word


@dataclass(frozen=True)
class Launcher:
    """A launcher whose lines can be read.

    Attributes:
        name: Name in messages, and in LaunchLine.launcher.
        read: Returns the meaning of its options, given the variables in front of the line. Raises ValueError if options
            contradict each other.
        begins: Possible first words of its line, without `python`: `accelerate launch`, `-m torch.distributed.run`.
        spelled: Returns the documented spelling of an option's name.
        abbreviates: True if an unambiguous prefix of a long name is accepted.
        exclusive: Options of which a line may have only one.
        starts_commands: True if it starts any command, such as another launcher.
        local_rank: The option by which it gives the program its local rank, and the switch that turns this off.
        note: Note that applies to each of its lines.
    """

    name: str
    options: tuple[Option, ...]
    read: Callable[[Given, Mapping[str, str]], Reading]
    begins: tuple[str, ...]
    spelled: Callable[[str], str] = str
    abbreviates: bool = False
    exclusive: tuple[tuple[str, ...], ...] = ()
    starts_commands: bool = False
    local_rank: tuple[str, str] | None = None
    note: str | None = None


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
    """Reads the options of a launcher's line; `words` are without the launcher's own words.

    Raises:
        ConfigError: options are unknown, refused or exclude each other, all of which the message lists; or the line has
            no program.
    """
    given, unknown, rest = _up_to_program(launcher, words)
    options = [option for option in launcher.options if option.name in given]
    problems = [_unknown(launcher, word) for word in unknown]
    problems += [f"{_shown(launcher, o, given)}: {o.text}" for o in options if o.outcome == "refused"]
    for group in (("--module", "--no_python"), *launcher.exclusive):
        if len(both := [name for name in group if name in given]) > 1:
            problems.append(f"{launcher.name} {' and '.join(both)} exclude each other: keep one")
    if problems:
        raise ConfigError("\n".join(problems))
    set_here = {
        option.text: value
        for option in launcher.options
        if option.outcome == "variable" and (value := option.variable(given)) is not None
    }
    notes = [f"{_shown(launcher, o, given)}: {o.text}" for o in options if o.outcome == "noted"]
    notes += [
        f"{_shown(launcher, option, given)}: it is read only with {option.under}"
        for option in options
        if option.under is not None and option.under not in given
    ]
    if launcher.note is not None:
        notes.append(launcher.note)
    return OptionsRead(given, set_here, tuple(notes), rest)


def _up_to_program(launcher: Launcher, words: Sequence[str]) -> tuple[dict[str, Any], list[str], tuple[str, ...]]:
    """Returns the values of the launcher's options, its unknown options, and the words from the program on."""
    parser, spelled = _parser(launcher), [launcher.spelled(word) for word in words]
    endings = {option.name for option in launcher.options if option.values == "=..."}
    problem = "it names no program"
    for end in range(1, len(words) + 1):
        if words[end - 1] == "--":
            continue
        try:
            parsed, unknown = parser.parse_known_args(spelled[:end])
        except _UnreadableError as error:
            problem = str(error)
            continue
        values = vars(parsed)
        problem = "it names no program" if not unknown else _unknown(launcher, unknown[0])
        if values.pop(PROGRAM) or any(values.get(name) for name in endings):
            return values, unknown, tuple(words[end - 1 :])
    prefix = "" if problem.startswith(launcher.name) else f"{launcher.name}: "
    raise ConfigError(f"{prefix}{problem}: write its options, then the script with its own arguments")


@cache
def _parser(launcher: Launcher) -> argparse.ArgumentParser:
    parser = _Parser(
        prog=launcher.name,
        add_help=False,
        allow_abbrev=launcher.abbreviates,
        argument_default=argparse.SUPPRESS,
        usage="",
    )
    for option in launcher.options:
        arguments = {"default": argparse.SUPPRESS, **_VALUES[option.values]}
        parser.add_argument(*option.names, dest=option.name, **arguments)
    parser.add_argument(PROGRAM, nargs=argparse.REMAINDER)
    return parser


def _shown(launcher: Launcher, option: Option, given: Given) -> str:
    value = given[option.name]
    if value is True or name_looks_secret(option.name):
        return f"{launcher.name} {option.name}"
    # A repeated option is shown with its last value.
    last = value[-1] if isinstance(value, list) and "*" in option.values else value
    return f"{launcher.name} {option.name} {' '.join(last) if isinstance(last, list) else last}"


def _unknown(launcher: Launcher, word: str) -> str:
    # The value may be a secret.
    name = word.partition("=")[0]
    long = [each for option in launcher.options for each in option.names if each[:2].count("-") == name[:2].count("-")]
    near = difflib.get_close_matches(name, long, n=1)
    hint = f"did you mean {near[0]}?" if near else "options of the script follow it"
    return f"{launcher.name} {name}: there is no such option; {hint}"
