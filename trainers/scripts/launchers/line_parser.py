"""Parses the words of a line that starts training into a LaunchLine. Pure, without files and environment variables."""

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath

from trainers.errors import ConfigError
from trainers.scripts.launchers.known_launchers import DEVICES, LAUNCHERS, PYTHON, visible_devices
from trainers.scripts.launchers.launcher import (
    PLAIN,
    VISIBLE,
    Launcher,
    LaunchLine,
    OptionsRead,
    Program,
    ProgramKind,
    Reading,
    Workers,
    count_of,
    read_options,
)

ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
# Commands that start processes themselves, and would do so in each worker.
OTHER_LAUNCHERS = ("aprun", "colossalai", "composer", "horovodrun", "jsrun", "sbatch")
# Commands that start another command but are not launchers; they would start a launcher in each worker.
WRAPPERS = (
    *("uv", "uvx", "poetry", "pipenv", "pdm", "hatch", "conda", "mamba", "micromamba", "pixi", "nohup", "time", "nice"),
    *("ionice", "sudo", "numactl", "taskset", "stdbuf", "xvfb-run", "timeout", "exec", "command"),
)
# Similarity between the names of a program and a launcher above which a typo is assumed.
NEAR = 0.7
# Variables of a worker's rank, as torch.distributed reads them.
PLACES = (
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT"),
)


def parse_line(words: Sequence[str]) -> LaunchLine:
    """Parses a line that starts training, as words into which a shell splits it.

    Raises:
        ConfigError: the line has no program, or an option that is unknown or not possible here; the message explains
            each, and what to write instead.
    """
    assignments, command = _assignments(words)
    line = _line_of(command, assignments)
    found = {**assignments, **line.assignments}
    visible = [name for name in found if name in VISIBLE]
    places = [name for name in found if name in PLACES]
    notes = [f"{name}={found[name]}: {DEVICES}" for name in visible]
    notes += [f"{name}={found[name]}: it is set for each worker, to its own" for name in places]
    device = line.device
    if device is None and visible:
        device = "cpu" if visible_devices(found) == 0 else VISIBLE[visible[0]]
    kept = {name: value for name, value in found.items() if name not in VISIBLE and name not in PLACES}
    return replace(line, assignments=kept, device=device, notes=(*notes, *line.notes))


def _assignments(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Returns the assignments at the beginning of a line, also those after `env`, and the rest of the line."""
    rest, found = list(words), {}
    while rest and (rest[0] == "env" or ASSIGNMENT.fullmatch(rest[0])):
        if match := ASSIGNMENT.fullmatch(rest.pop(0)):
            found[match[1]] = match[2]
        elif rest and rest[0].startswith("-"):
            raise ConfigError(f"env {rest[0]}: leave options of env out: workers have the environment of their node")
    return found, rest


def _line_of(command: Sequence[str], assignments: Mapping[str, str]) -> LaunchLine:
    """Parses a command; `assignments` are the variables in front of it."""
    if not command:
        raise ConfigError("the line is empty: write it as it is started, e.g. torchrun --nproc_per_node 4 train.py")
    launcher, words = _launcher_of(command)
    if launcher is None:
        return _without_launcher(command, assignments)
    line = _launched(launcher, words, assignments)
    return replace(line, interpreter=command[0]) if launcher is PYTHON else line


def _launcher_of(words: Sequence[str]) -> tuple[Launcher | None, Sequence[str]]:
    """Returns the launcher with which these words begin, and the rest; ignores a version in the launcher's name."""
    first = re.sub(r"(?<=\w)-?[\d.]+$", "", PurePath(words[0]).name)
    for launcher in LAUNCHERS:
        for begin in map(str.split, launcher.begins):
            if [first, *words[1 : len(begin)]] == begin:
                return launcher, words[len(begin) :]
    return None, words


def _without_launcher(command: Sequence[str], assignments: Mapping[str, str]) -> LaunchLine:
    """Parses a line that does not begin with a launcher."""
    first = command[0]
    inside = _launcher_inside(command) if first in WRAPPERS else None
    if inside is not None:
        raise ConfigError(
            f"every worker would run {first} {inside}, and {inside} would start workers of its own: leave out {first}, "
            f"and begin the line with {inside}"
        )
    if first.endswith(".py"):
        return _launched(PYTHON, command, assignments)
    known = [begin for launcher in LAUNCHERS for begin in launcher.begins if not begin.startswith("-m ")]
    near = difflib.get_close_matches(first, known, n=1, cutoff=NEAR) if "/" not in first else []
    if near or first in OTHER_LAUNCHERS:
        hint = f"did you mean {near[0]}?" if near else f"give the line of one that is: {', '.join(known)}"
        raise ConfigError(f"{first}: this launcher is not known: {hint}")
    return LaunchLine(launcher=PLAIN, program=_program("executable", command), workers=Workers(1, 1))


def _launcher_inside(command: Sequence[str]) -> str | None:
    """Returns the first word of a launcher that another command starts; None if it starts none."""
    for place, word in enumerate(command):
        launcher, _ = _launcher_of(command[place:])
        if launcher is not None and launcher is not PYTHON:
            return command[place - 1] if word == "-m" else word
    return None


def _launched(launcher: Launcher, words: Sequence[str], assignments: Mapping[str, str]) -> LaunchLine:
    """Parses the line of a launcher, which may itself start another launcher."""
    options = read_options(launcher, words)
    given = options.given
    try:
        reading = launcher.read(given, assignments)
        retries = count_of(given, "--max_restarts", least=0)
    except ValueError as error:
        raise ConfigError(f"{launcher.name} {error}") from None
    variables = {**options.variables, **reading.variables}
    if launcher is PYTHON:
        inner, rest = _launcher_of(["-m", *options.words] if "-m" in given else options.words)
        if inner is not None:
            line = _launched(inner, rest, assignments)
            return replace(line, variables={**variables, **line.variables})
    reading = replace(reading, variables=variables, notes=(*options.notes, *reading.notes))
    if launcher.starts_commands:
        return _inside(launcher, options, reading, assignments)
    is_module = not given.keys().isdisjoint(("-m", "--module"))
    kind: ProgramKind = "module" if is_module else "executable" if "--no_python" in given else "script"
    option, without = launcher.local_rank or (None, "")
    return LaunchLine(
        **vars(reading),
        launcher=launcher.name,
        program=_program(kind, options.words),
        max_retries=retries,
        local_rank_option=option if without not in given else None,
    )


def _inside(launcher: Launcher, options: OptionsRead, outer: Reading, before: Mapping[str, str]) -> LaunchLine:
    """Parses the command that a launcher starts; if the command is a launcher, its number of workers counts."""
    assignments, command = _assignments(options.words)
    assignments = {**outer.assignments, **assignments}
    line = _line_of(command, {**before, **assignments})
    starts_none = line.launcher == PLAIN
    return replace(
        line,
        launcher=launcher.name if starts_none else line.launcher,
        workers=outer.workers if starts_none else line.workers,
        device=line.device or outer.device,
        assignments={**assignments, **line.assignments},
        notes=(*outer.notes, *line.notes),
    )


def _program(kind: ProgramKind, words: Sequence[str]) -> Program:
    name, *arguments = words
    if not name or name.startswith("-"):
        # Also refuses `python -`, which would find no standard input and end without an error.
        raise ConfigError(f"{name or repr(name)}: no program: write its name there, e.g. train.py")
    return Program(kind, name, tuple(arguments))
