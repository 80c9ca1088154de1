"""Resolves the recipe of a program by turning its launcher's options into fields of the recipe."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from runtime_env.secret_arguments import WAY, literal_secrets, secret_references
from trainers.config.overrides import copy_levels
from trainers.config.parts.script_part import is_python
from trainers.config.validation import refuse
from trainers.errors import ConfigError
from trainers.scripts.inputs.placeholders import problems_of
from trainers.scripts.launchers.launcher import PLAIN, LaunchLine
from trainers.scripts.launchers.line_parser import parse_line
from trainers.scripts.launchers.line_words import split_line
from trainers.scripts.outputs.output_folder import NOT_NAMED, note_on_overwriting, output_folder_of

DEFAULT_PYTHONS = ("python", "python3")


def resolve_program(
    content: Mapping[str, Any],
    environment: Mapping[str, str],
    say: Callable[[str], None] | None = None,
    *,
    base: Path = Path(),
) -> dict[str, Any]:
    """Returns a copy of a recipe's content whose command begins with the program, without a launcher.

    Checks that its placeholders are valid on each node. A recipe without a program is unchanged.

    Args:
        content: The content of any recipe.
        environment: Values of `$NAME` in a command that is a single text.
        say: Called with notes on parts of the command without effect, and on an output folder that is not known, for
            which files of arguments in `base` are read; None to read no files and drop the notes.
        base: Folder in which the program is started.

    Raises:
        ConfigError: the command cannot be run here, or contradicts the recipe.
    """
    result = copy_levels(content)
    part = result.get("script")
    command = part.get("command") if isinstance(part, dict) else None
    if isinstance(part, dict) and part.get("prepare"):
        part["prepare"] = _prepare_words(part["prepare"], environment)
    if part is None or not isinstance(command, str | list | tuple) or not command:
        return result
    words = _words_of(command, environment) if isinstance(command, str) else [str(word) for word in command]
    notes: list[str] = []
    if words and is_python(words):
        part["command"] = words
    else:
        line = parse_line(words)
        _apply(line, result)
        notes = [f"script.command: {note}" for note in (*line.notes, *_notes_on_workers(line, result["scaling"]))]
    _check_secrets(part)
    _check_placeholders(part)
    if say is not None:
        for note in (*notes, *_notes_on_output(part, base)):
            say(note)
    return result


def _words_of(text: str, environment: Mapping[str, str]) -> list[str]:
    """Splits a text into words, and expands its variables, except those that refer to a secret."""
    references = {name: f"${{{name}}}" for name in environment}
    secrets = secret_references(split_line(text, references), environment)
    return split_line(text, {**environment, **{name: f"${{{name}}}" for name in secrets}})


def _prepare_words(command: Any, environment: Mapping[str, str]) -> Any:
    """Splits a command into words; drops a `python` in front, which script.python adds, as in script.command."""
    words = _words_of(command, environment) if isinstance(command, str) else command
    is_plain = isinstance(words, list | tuple) and len(words) > 1 and words[0] in DEFAULT_PYTHONS
    return words[1:] if is_plain and is_python([str(words[1])]) else words


def _check_secrets(part: Mapping[str, Any]) -> None:
    """Refuses literal secrets; values that are not lists or mappings are refused later."""
    env, prepare = part.get("env"), part.get("prepare")
    commands = {"command": part["command"], "prepare": prepare if isinstance(prepare, list | tuple) else ()}
    found = [
        f"{field}: {name}"
        for field, words in commands.items()
        for name in literal_secrets([str(word) for word in words])
    ]
    variables = env if isinstance(env, Mapping) else {}
    found += [f"env.{name}" for name, value in variables.items() if literal_secrets([f"{name}={value}"])]
    refuse([f"{place} {WAY}" for place in found], "script")


def _check_placeholders(part: Mapping[str, Any]) -> None:
    """Refuses placeholders that no node could resolve; values that are not lists or mappings are refused later."""
    env, prepare = part.get("env"), part.get("prepare")
    words = [*part["command"], *(prepare if isinstance(prepare, list | tuple) else ())]
    words += [f"{name}={value}" for name, value in (env.items() if isinstance(env, Mapping) else ())]
    refuse(
        problems_of(
            [str(word) for word in words], prepares=prepare is not None, has_prefixes=bool(part.get("path_prefix"))
        ),
        "script",
    )


def _apply(line: LaunchLine, content: dict[str, Any]) -> None:
    part, program = content["script"], line.program
    part["command"] = [*(["-m"] if program.kind == "module" else []), program.name, *program.arguments]
    # A value that is not a mapping is refused later.
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
    # Plain Python says nothing about the number of workers, since each worker is one process.
    if line.workers is not None and line.launcher != PLAIN:
        fewest, most = line.workers.min, line.workers.max
        _set(scaling, "scaling.num_workers", most if fewest == most else {"min": fewest, "max": most})
    if line.device == "gpu" and "accelerator" not in scaling:
        _set(scaling, "scaling.use_gpu", True)
    elif line.device is not None and line.device != "gpu":
        _set(scaling, "scaling.accelerator", line.device)


def _notes_on_workers(line: LaunchLine, scaling: Any) -> Iterator[str]:
    """Yields notes on numbers of workers in the line that the recipe does not follow."""
    if line.workers is None and isinstance(scaling, dict) and "num_workers" not in scaling:
        yield (
            f"{line.launcher} counts devices where it is started, but it is not started here: there is 1 worker, "
            "unless you set scaling.num_workers (--num-workers)"
        )
    if line.workers is not None and line.workers.per_node not in (None, line.workers.max):
        yield placement_note(line.launcher, line.workers.per_node or 1, line.workers.max)


def _notes_on_output(part: Mapping[str, Any], base: Path) -> Iterator[str]:
    folder = base / str(part.get("working_dir") or ".")
    if not part.get("sync_dir") and output_folder_of(part["command"], folder) is None:
        yield NOT_NAMED
    if (note := note_on_overwriting(part["command"], folder)) is not None:
        yield note


def placement_note(said_by: str, per_node: int, workers: int) -> str:
    """Returns a note on a number of workers per node, which Ray Train does not support."""
    strict = ", or scaling.placement_strategy is STRICT_SPREAD" if per_node == 1 else ""
    return (
        f"{said_by} says {per_node} on each node: Ray Train places {workers} workers on as few nodes as it can; each "
        f"gets {per_node} if no node has capacity for more{strict}"
    )


def _set(part: dict[str, Any], name: str, value: Any) -> None:
    """Sets a field to the line's value; refuses a contradicting recipe."""
    field = name.rpartition(".")[2]
    if part.get(field, value) != value:
        raise ConfigError(
            f"{name} is {part[field]}, and the launcher in script.command says {value}: leave one of them out"
        )
    part[field] = value
