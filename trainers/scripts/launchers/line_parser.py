"""Parses the words of a line that starts training into a LaunchLine. Pure: reads no files and no variables."""

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath

from trainers.errors import ConfigError
from trainers.scripts.launchers.accelerate_launch import ACCELERATE
from trainers.scripts.launchers.deepspeed_runner import DEEPSPEED
from trainers.scripts.launchers.gaudi_spawn import GAUDI_SPAWN
from trainers.scripts.launchers.launch_line import PLAIN, Device, LaunchLine, Program, Reading, Workers
from trainers.scripts.launchers.launch_option import DEVICES, Option, refused
from trainers.scripts.launchers.launcher import Given, Launcher, OptionsRead, Surroundings, read_options
from trainers.scripts.launchers.mpirun import MPIRUN
from trainers.scripts.launchers.srun import SRUN
from trainers.scripts.launchers.torchrun import TORCH_LAUNCH, TORCHRUN

ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
# Variables that list the devices of a process, by the kind of device.
VISIBLE: Mapping[str, Device] = {
    "CUDA_VISIBLE_DEVICES": "gpu",
    "HIP_VISIBLE_DEVICES": "gpu",
    "ROCR_VISIBLE_DEVICES": "gpu",
    "HABANA_VISIBLE_MODULES": "hpu",
    "HABANA_VISIBLE_DEVICES": "hpu",
}
# Commands that start processes themselves, and would do so in each worker.
OTHER_LAUNCHERS = ("aprun", "colossalai", "composer", "horovodrun", "jsrun", "sbatch")
# Commands that start another command, and are not launchers: they would start a launcher in each worker.
WRAPPERS = (
    *("uv", "uvx", "poetry", "pipenv", "pdm", "hatch", "conda", "mamba", "micromamba", "pixi", "nohup", "time", "nice"),
    *("ionice", "sudo", "numactl", "taskset", "stdbuf", "xvfb-run", "timeout", "exec", "command"),
)
# Similarity of a program's name to a launcher's above which a typo is assumed.
NEAR = 0.7
# Variables of a worker's rank, as torch.distributed reads them.
PLACES = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "NODE_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
)
# Python itself, which starts one process: its options as variables, docs.python.org/3/using/cmdline.html.
# By the letter of the option.
VARIABLES = {
    "u": "PYTHONUNBUFFERED",
    "B": "PYTHONDONTWRITEBYTECODE",
    "O": "PYTHONOPTIMIZE",
    "s": "PYTHONNOUSERSITE",
    "P": "PYTHONSAFEPATH",
    "v": "PYTHONVERBOSE",
}
# By the name after -X.
IMPLEMENTATION = {
    "faulthandler": "PYTHONFAULTHANDLER",
    "dev": "PYTHONDEVMODE",
    "utf8": "PYTHONUTF8",
    "importtime": "PYTHONPROFILEIMPORTTIME",
    "tracemalloc": "PYTHONTRACEMALLOC",
}

PYTHON_OPTIONS = (
    Option(("-m",), "ours", ends=True),
    *(Option((f"-{letter}",), "ours", read=None) for letter in VARIABLES),
    Option(("-OO",), "ours", read=None),
    Option(("-W",), "ours", repeated=True),
    Option(("-X",), "ours", repeated=True),
    Option(("-c",), "refused", "write the program into a file, and name the file", ends=True),
    *refused(
        "the workers run the Python of the cluster with its own start: leave it out",
        switches=["-E", "-I", "-S", "-i", "-x", "-b", "-bb", "-d", "-q"],
    ),
)


def _read_python(given: Given, surroundings: Surroundings) -> Reading:
    """Reads Python's options as variables of the same meaning; one process."""
    variables = {name: "1" for letter, name in VARIABLES.items() if given.get(letter)}
    if given.get("OO"):
        variables["PYTHONOPTIMIZE"] = "2"
    if warnings := given.get("W"):
        variables["PYTHONWARNINGS"] = ",".join(warnings)
    for text in given.get("X", ()):
        name, _, value = text.partition("=")
        if name not in IMPLEMENTATION:
            raise ValueError(f"-X {text}: of these options there are {', '.join(IMPLEMENTATION)}: leave it out")
        variables[IMPLEMENTATION[name]] = value or "1"
    return Reading(workers=Workers(1, 1), variables=variables, kind="module" if "m" in given else "script")


PYTHON = Launcher(PLAIN, PYTHON_OPTIONS, _read_python, commands=("python",))
# To add a launcher: a file with its `Launcher`, and a line here.
LAUNCHERS: tuple[Launcher, ...] = (
    TORCHRUN,
    TORCH_LAUNCH,
    ACCELERATE,
    DEEPSPEED,
    GAUDI_SPAWN,
    MPIRUN,
    SRUN,
    PYTHON,
)


def parse_line(words: Sequence[str]) -> LaunchLine:
    """Parses a line that starts training, given as the words that a shell makes of it.

    Raises:
        ConfigError: the line has no program, or an option that is unknown or cannot be followed here; the message
            explains each, and what to write instead.
    """
    assignments, command = _assignments(words)
    line = _line_of(command, Surroundings(assignments, _devices(assignments)))
    found = {**assignments, **line.assignments}
    visible = [name for name in found if name in VISIBLE]
    places = [name for name in found if name in PLACES]
    notes = [f"{name}={found[name]}: {DEVICES}" for name in visible]
    notes += [f"{name}={found[name]}: it is set for each worker, to its own" for name in places]
    device = line.device
    if device is None and visible:
        device = "cpu" if _devices(found) == 0 else VISIBLE[visible[0]]
    kept = {name: value for name, value in found.items() if name not in VISIBLE and name not in PLACES}
    return replace(line, assignments=kept, device=device, notes=(*notes, *line.notes))


def _assignments(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Returns the assignments at the beginning of a line, also after `env`, and the rest."""
    rest, found = list(words), {}
    while rest and (rest[0] == "env" or ASSIGNMENT.fullmatch(rest[0])):
        if match := ASSIGNMENT.fullmatch(rest.pop(0)):
            found[match[1]] = match[2]
        elif rest and rest[0].startswith("-"):
            raise ConfigError(f"env {rest[0]}: leave options of env out: workers have the environment of their node")
    return found, rest


def _devices(assignments: Mapping[str, str]) -> int | None:
    """Returns the number of devices in the first variable of VISIBLE; None if it lists all, or there is none."""
    for value in (value for name, value in assignments.items() if name in VISIBLE):
        devices = [device.strip() for device in value.split(",") if device.strip()]
        return None if devices == ["all"] else len([device for device in devices if device != "-1"])
    return None


def _line_of(command: Sequence[str], surroundings: Surroundings) -> LaunchLine:
    """Parses a command without assignments."""
    if not command:
        raise ConfigError("the line is empty: write it as it is started, e.g. torchrun --nproc_per_node 4 train.py")
    launcher, words = _launcher_of(command)
    if launcher is None:
        return _without_launcher(command, surroundings)
    line = _launched(launcher, words, surroundings)
    return replace(line, interpreter=command[0]) if launcher is PYTHON else line


def _launcher_of(command: Sequence[str]) -> tuple[Launcher | None, Sequence[str]]:
    """Returns the launcher whose command begins a line, and the rest; a version in its name is ignored."""
    first = re.sub(r"(?<=\w)-?[\d.]+$", "", PurePath(command[0]).name)
    for launcher in LAUNCHERS:
        for begin in launcher.commands:
            words = begin.split()
            if [first, *command[1 : len(words)]] == words:
                return launcher, command[len(words) :]
    return None, command


def _without_launcher(command: Sequence[str], surroundings: Surroundings) -> LaunchLine:
    """Parses a line that begins with a file."""
    first = command[0]
    inside = _launcher_inside(command) if first in WRAPPERS else None
    if inside is not None:
        raise ConfigError(
            f"{first} would start {inside} in each worker, and that its own processes: write the line from {inside} on"
        )
    if first.endswith(".py"):
        return _launched(PYTHON, command, surroundings)
    known = [begin for launcher in LAUNCHERS for begin in launcher.commands]
    near = difflib.get_close_matches(first, known, n=1, cutoff=NEAR) if "/" not in first else []
    if near or first in OTHER_LAUNCHERS:
        hint = f"did you mean {near[0]}?" if near else f"give the line of one that is: {', '.join(known)}"
        raise ConfigError(f"{first}: no launcher that is known here: {hint}")
    options = OptionsRead({}, {}, (), tuple(command))
    return _line(PYTHON, options, replace(_read_python({}, surroundings), kind="executable"))


def _launcher_inside(command: Sequence[str]) -> str | None:
    """Returns the first word of a launcher that another command starts."""
    for place, word in enumerate(command):
        launcher, _ = _launcher_of(command[place:])
        if launcher is not None and launcher is not PYTHON:
            return word
        if any([word, *command[place + 1 : place + 2]] == ["-m", name] for each in LAUNCHERS for name in each.modules):
            return command[place - 1]
    return None


def _launched(launcher: Launcher, words: Sequence[str], surroundings: Surroundings) -> LaunchLine:
    """Parses the line of a launcher, or of the launcher that it starts in turn."""
    options = read_options(launcher, words)
    try:
        reading = launcher.read(options.given, surroundings)
    except ValueError as error:
        raise ConfigError(f"{launcher.name} {error}") from None
    if launcher is PYTHON:
        inner = _started_by_python(reading, options.words)
        if inner is not None:
            line = _launched(inner[0], inner[1], surroundings)
            return replace(line, variables={**reading.variables, **line.variables})
    if reading.kind != "command":
        return _line(launcher, options, reading)
    return _inside(launcher, options, reading, surroundings)


def _started_by_python(reading: Reading, words: Sequence[str]) -> tuple[Launcher, Sequence[str]] | None:
    """Returns the launcher that is a module or a script of Python, and the following words."""
    for launcher in LAUNCHERS:
        if reading.kind == "module" and words[0] in launcher.modules:
            return launcher, words[1:]
        if reading.kind == "script" and PurePath(words[0]).name in launcher.scripts:
            return launcher, words[1:]
    return None


def _inside(launcher: Launcher, options: OptionsRead, outer: Reading, surroundings: Surroundings) -> LaunchLine:
    """Parses the command that a launcher starts; if that is a launcher, too, its own number of workers counts."""
    assignments, command = _assignments(options.words)
    assignments = {**outer.assignments, **assignments}
    inside = {**surroundings.assignments, **assignments}
    line = _line_of(command, Surroundings(inside, _devices(inside)))
    starts_none = line.launcher == PLAIN
    return replace(
        line,
        launcher=launcher.name if starts_none else line.launcher,
        workers=outer.workers if starts_none else line.workers,
        device=line.device or outer.device,
        assignments={**assignments, **line.assignments},
        notes=(*options.notes, *outer.notes, *line.notes),
    )


def _line(launcher: Launcher, options: OptionsRead, reading: Reading) -> LaunchLine:
    name, *arguments = options.words
    if not name or name.startswith("-"):
        # Also for `python -`, which would find no standard input and end without an error.
        raise ConfigError(f"{name or repr(name)}: no program: write its name there, e.g. train.py")
    own = {
        **vars(reading),
        "variables": {**options.variables, **reading.variables},
        "notes": (*options.notes, *reading.notes),
    }
    return LaunchLine(launcher=launcher.name, program=Program(reading.kind, name, tuple(arguments)), **own)
