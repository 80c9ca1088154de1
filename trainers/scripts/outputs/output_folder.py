"""Reads from a command line the output folder of its program, and whether the program would overwrite it."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import yaml

from trainers.config.flags.flag import WORDS_OF_A_SWITCH

# Names that programs use for the argument, the most reliable first.
_NAMES = (
    *("output_dir", "output_folder", "save_dir", "save_folder", "checkpoint_dir", "checkpoints_dir", "ckpt_dir"),
    *("exp_dir", "experiment_dir", "out_dir", "work_dir", "log_dir", "logging_dir"),
)
# Maximum size of a file of arguments.
_MOST_BYTES = 1 << 20
_REFERENCE = re.compile(r"<([^<>]+)>")
# Maximum number of references to replace, since references may refer to each other.
_MOST_REFERENCES = 20
# Message if `output_folder_of` finds none.
NOT_NAMED = (
    "script: no argument names its output folder, so nothing that it writes is kept: set script.sync_dir "
    "(rayscribe launch --sync-dir)"
)
# Option with which many public scripts ignore their checkpoints and start over.
OPTION = "--overwrite_output_dir"
LEFT_OUT = f"script: {OPTION} is left out, since with it the program would ignore the checkpoint to continue from"
_SPELLED, _SHORTEST = OPTION.replace("-", "_"), "__overwrite"
# The option in a text for a shell, or in an override for Hydra.
_ELSEWHERE = re.compile(
    r"(?<!\w)(?<!no-)overwrite[_-]output(?:[_-]dir)?(?![\w-])(?!\s*[=:\s]\s*(?:false|no|off|0|null)\b)", re.IGNORECASE
)
_ON = frozenset(word for word, is_on in WORDS_OF_A_SWITCH.items() if is_on)


def output_folder_of(words: Sequence[str], working_dir: Path) -> Path | None:
    """Returns the absolute output folder in a program's arguments; None if they have none, or it is not local.

    Supports `--output_dir out`, `--output-dir=out` and `output_dir=out`, and files of arguments: JSON or YAML,
    SpeechBrain's hparams.yaml, which other arguments override, argparse's `@arguments.txt`, and HfArgumentParser's
    `train.args` next to `train.py`. `words` are the program and its arguments.
    """
    values = arguments_of(words, working_dir)
    for name in _NAMES:
        folder = _resolved(values.get(name), values)
        if folder:
            return None if "://" in folder else working_dir / Path(folder).expanduser()
    return None


def arguments_of(words: Sequence[str], working_dir: Path) -> dict[str, Any]:
    """Returns the values of a program's arguments, including those in files, by name with underscores."""
    values: dict[str, Any] = {}
    words = with_files(words, working_dir)
    for word in words:
        values |= _read_arguments(working_dir / word.rpartition("=")[2])
    return values | _given(words)


def with_files(words: Sequence[str], working_dir: Path) -> list[str]:
    """Returns the words, with files of arguments replaced by the words in them."""
    beside = _text(working_dir / Path(words[0]).with_suffix(".args")) if words[0].endswith(".py") else None
    lines = ((_text(working_dir / word[1:]) if word.startswith("@") else None, word) for word in words[1:])
    found = (text.splitlines() if text is not None else [word] for text, word in lines)
    return [words[0], *(beside or "").split(), *chain.from_iterable(found)]


def _text(path: Path) -> str | None:
    """Returns the content of a file of arguments; None if it is too large or not readable."""
    try:
        return path.read_text() if path.stat().st_size <= _MOST_BYTES else None
    except (OSError, ValueError):
        return None


def _given(words: Sequence[str]) -> dict[str, Any]:
    """Returns the last value of each argument, by its name with underscores."""
    given = {}
    for word, following in zip(words, [*words[1:], "--"], strict=True):
        name, equals, value = word.partition("=")
        if equals:
            given[_plain(name)] = value
        elif word.startswith("--") and not following.startswith("--"):
            given[_plain(word)] = following
    return given


def _plain(name: str) -> str:
    return name.removeprefix("--").replace("-", "_")


class _Tagged(str):
    """A YAML scalar with a tag of another program, such as `!ref`."""

    tag: str

    def __new__(cls, text: str, tag: str) -> "_Tagged":
        made = super().__new__(cls, text)
        made.tag = tag
        return made


class _TolerantLoader(yaml.SafeLoader):
    """Reads YAML with tags from which programs make objects, as plain text or values."""


def _keep(loader: yaml.SafeLoader, tag: str, node: yaml.Node) -> Any:
    if isinstance(node, yaml.ScalarNode):
        return _Tagged(str(loader.construct_scalar(node)), tag)
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    assert isinstance(node, yaml.MappingNode)
    return loader.construct_mapping(node, deep=True)


_TolerantLoader.add_multi_constructor("", _keep)


def _read_arguments(path: Path) -> dict[str, Any]:
    """Returns the content of a file of arguments by name; empty if the file is not a file of arguments."""
    text = _text(path) if path.suffix in (".json", ".yaml", ".yml") else None
    if text is None:
        return {}
    try:
        content = json.loads(text) if path.suffix == ".json" else yaml.load(text, _TolerantLoader)
    except (ValueError, RecursionError, yaml.YAMLError):
        return {}
    return {str(name): value for name, value in content.items()} if isinstance(content, dict) else {}


def _resolved(value: Any, values: Mapping[str, Any]) -> str | None:
    """Returns the text of a value with each `<name>` replaced as in HyperPyYAML; None if that requires running code."""
    if not isinstance(value, str):
        return None
    if isinstance(value, _Tagged) and value.tag != "!ref":
        return None
    text = str(value)
    for _ in range(_MOST_REFERENCES):
        match = _REFERENCE.search(text)
        if match is None:
            return text
        found = _value_at(match[1], values)
        if found is None or isinstance(found, list | dict) or (isinstance(found, _Tagged) and found.tag != "!ref"):
            return None
        text = f"{text[: match.start()]}{found}{text[match.end() :]}"
    return None


def _value_at(reference: str, values: Mapping[str, Any]) -> Any:
    """Returns the value of `name`, `name[key]` or `name.key`; None if there is none."""
    found: Any = values
    for key in re.split(r"[.\[\]]+", reference.rstrip("]")):
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def without_overwriting(words: Sequence[str]) -> list[str]:
    """Returns a command without OPTION; keeps it if its value turns it off."""
    left_out = {place for each in _places(words) for place in each}
    return [word for place, word in enumerate(words) if place not in left_out]


def note_on_overwriting(words: Sequence[str], working_dir: Path) -> str | None:
    """Returns a note on how a command's OPTION is handled; None if the command does not have it."""
    if any(_places(words)):
        return (
            f"script.command: {OPTION} makes the program ignore its checkpoints, so it is kept at the first start, and "
            "left out when the run continues from a checkpoint"
        )
    name = OPTION.removeprefix("--")
    is_in_text = any(_ELSEWHERE.search(word) for word in words if not word.startswith("--"))
    is_in_file = str(arguments_of(words, working_dir).get(name)).lower() in _ON
    if not (is_in_text or is_in_file or any(_places(with_files(words, working_dir)))):
        return None
    return (
        f"script.command: {name} in a text for a shell, an override or a file of arguments makes the program ignore "
        f"its checkpoints, so it starts over at every restart: remove it there, or give the program {OPTION} as an "
        "argument, which is then left out at restarts"
    )


def _places(words: Sequence[str]) -> Iterator[range]:
    """Yields the positions of the words that turn the option on."""
    for place, (word, following) in enumerate(pairwise([*words, ""])):
        name, equals, value = word.partition("=")
        # argparse accepts prefixes of an option, too.
        name = name.replace("-", "_")
        if not (name.startswith(_SHORTEST) and _SPELLED.startswith(name)):
            continue
        if equals or following.lower() not in WORDS_OF_A_SWITCH:
            if not equals or value.lower() in _ON:
                yield range(place, place + 1)
        elif following.lower() in _ON:
            yield range(place, place + 2)
