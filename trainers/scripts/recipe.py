"""The recipe of a program, resolved: what the launcher of its line is told becomes part of the recipe. Pure."""

from collections.abc import Callable, Mapping
from typing import Any

from trainers.config.overrides import copy_levels
from trainers.config.validation import refuse
from trainers.errors import ConfigError
from trainers.scripts.inputs.placeholders import needs_data, problems_of
from trainers.scripts.launchers.launch_line import LaunchLine
from trainers.scripts.launchers.line_parser import parse_line
from trainers.scripts.launchers.line_words import split_line

DEFAULT_PYTHONS = ("python", "python3")


def resolve_program(
    content: Mapping[str, Any], environment: Mapping[str, str], say: Callable[[str], None] = lambda note: None
) -> dict[str, Any]:
    """A copy of a recipe's content whose command begins with the program; one that does is as it was.

    Its placeholders are ones that each node can replace.

    Args:
        content: Of any recipe; one without a program comes back unchanged.
        environment: Values of `$NAME` in a command that is one text.
        say: Takes notes: what of the line has no effect.

    Raises:
        ConfigError: the line cannot be followed, or says something else than the recipe.
    """
    result = copy_levels(content)
    part = result.get("script")
    command = part.get("command") if isinstance(part, dict) else None
    if isinstance(part, dict) and isinstance(part.get("prepare"), str):
        part["prepare"] = split_line(part["prepare"], environment)
    if part is None or not isinstance(command, str | list | tuple) or not command:
        return result
    words = split_line(command, environment) if isinstance(command, str) else [str(word) for word in command]
    if words and (words[0] == "-m" or words[0].endswith(".py")):
        part["command"] = words
    else:
        line = parse_line(words)
        for note in line.notes:
            say(f"script.command: {note}")
        _apply(line, result)
    _check_placeholders(part)
    return result


def _check_placeholders(part: Mapping[str, Any]) -> None:
    """Refuses placeholders that no node could replace; what is no list or no mapping is refused later."""
    env, prepare = part.get("env"), part.get("prepare")
    words = [*part["command"], *(prepare if isinstance(prepare, list | tuple) else ())]
    words += [f"{name}={value}" for name, value in (env.items() if isinstance(env, Mapping) else ())]
    problems = problems_of([str(word) for word in words])
    if prepare is None and needs_data([str(word) for word in words]):
        problems.append("{data} is what script.prepare writes, and there is none: set script.prepare to its command")
    refuse(problems, "script")


def _apply(line: LaunchLine, content: dict[str, Any]) -> None:
    part, program = content["script"], line.program
    part["command"] = [*(["-m"] if program.kind == "module" else []), program.name, *program.arguments]
    # What is no mapping is refused later.
    if line.environment and isinstance(part.get("env") or {}, dict):
        part["env"] = {**line.environment, **(part.get("env") or {})}
    named = line.interpreter if line.interpreter not in DEFAULT_PYTHONS else None
    for field, value in (
        ("python", named),
        ("max_restarts", line.max_retries),
        ("local_rank_option", line.local_rank_option),
    ):
        if value is not None:
            _set(part, f"script.{field}", value)
    if content.get("scaling") is None:
        content["scaling"] = {}
    scaling = content["scaling"]
    if not isinstance(scaling, dict):
        return
    if line.workers is not None:
        fewest, most = line.workers.min, line.workers.max
        _set(scaling, "scaling.num_workers", most if fewest == most else {"min": fewest, "max": most})
    if line.device == "gpu" and "accelerator" not in scaling:
        _set(scaling, "scaling.use_gpu", True)
    elif line.device is not None and line.device != "gpu":
        _set(scaling, "scaling.accelerator", line.device)


def _set(part: dict[str, Any], name: str, value: Any) -> None:
    """Sets what the line says, unless the recipe says it, too."""
    field = name.rpartition(".")[2]
    if part.get(field, value) != value:
        raise ConfigError(
            f"{name} is {part[field]}, and the launcher in script.command says {value}: leave one of them out"
        )
    part[field] = value
