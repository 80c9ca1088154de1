"""Translates the command line of a public fine-tuning script into overrides of config fields."""

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from trainers.config.flags.flag import SWITCH, Flag
from trainers.config.flags.script_flags import (
    DATA,
    DEFAULT_DATASET,
    GAUDI,
    LAUNCHER,
    MODEL,
    RUN,
    SCORE_ALONE,
    with_urls,
)
from trainers.config.flags.trainer_flags import DECIDED, FIELDS, PASSED_ON
from trainers.config.overrides import Override, apply_overrides
from trainers.config.parts.data_location import FORMATS, WITH_SPLITS, DataLocation
from trainers.config.schema import TrainConfig
from trainers.config.validation import description_of
from trainers.errors import ConfigError

# From the widely used recipe for Whisper; with fewer steps, a tenth of them are warm-up.
DEFAULT_MAX_STEPS, DEFAULT_WARMUP_STEPS = 5000, 500
STORAGE_VARIABLE = "BUCKET_URI"
# How the names of weights of CTC models begin.
CTC_NAMES = ("wav2vec2", "w2v", "hubert", "wavlm", "data2vec", "mms")
SECTIONS: Mapping[str, tuple[Flag, ...]] = {
    "model": MODEL,
    "data": DATA,
    "run": RUN,
    "training": FIELDS,
    "the Trainer, decided by Rayscribe": DECIDED,
    "the Trainer, passed on": PASSED_ON,
    "Gaudi": GAUDI,
    "Gaudi's launcher": LAUNCHER,
}
FLAGS = tuple(flag for flags in SECTIONS.values() for flag in flags)
BY_KEY = {flag.key: flag for flag in FLAGS}
_DATASET, _LANGUAGE = ("dataset", "dataset_name"), ("name", "dataset_config_name")
_SPLIT_FLAGS = {"train": "train_split_name", "validation": "eval_split_name", "test": None}


def add_sections(parser: argparse.ArgumentParser) -> None:
    """Adds all flags, in a group for each section; --help shows only those that set a field to their value."""
    for title, flags in SECTIONS.items():
        group = parser.add_argument_group(f"{title}, each short for a --set")
        for flag in flags:
            group.add_argument(
                flag.option,
                dest=flag.key,
                type=flag.kind.read,
                nargs=flag.kind.nargs,
                const=flag.kind.const,
                metavar="X" if flag.kind.nargs != "?" else "BOOL",
                help=_help(flag),
            )


def _help(flag: Flag) -> str:
    """Returns a flag's own explanation, or the first sentence of its field's description."""
    description = description_of(flag.field.partition(",")[0], TrainConfig) if flag.meanings is None else ""
    if not description:
        return argparse.SUPPRESS
    sentence = re.split(r"(?<!e\.g)\. |\.$", description, maxsplit=1)[0]
    return f"{flag.reason or sentence} → {flag.field}".replace("%", "%%")


def usually_spelled(arguments: Sequence[str]) -> list[str]:
    """Returns the arguments with each flag in its script's spelling, whether given with dashes or underscores.

    `--no_x` becomes `--x=False`, as in the scripts.
    """
    return [_usual(argument) if argument.startswith("--") else argument for argument in arguments]


def _usual(argument: str) -> str:
    name, equals, value = argument.partition("=")
    key = name.removeprefix("--").replace("-", "_")
    if key in BY_KEY:
        return f"{BY_KEY[key].option}{equals}{value}"
    negated = BY_KEY.get(key.removeprefix("no_"))
    if key.startswith("no_") and not equals and negated is not None and negated.kind is SWITCH:
        return f"{negated.option}=False"
    return argument


def given_flags(values: Mapping[str, Any]) -> Iterator[tuple[Flag, Any]]:
    """Yields each flag that was given, with its value."""
    return ((flag, values[flag.key]) for flag in FLAGS if values.get(flag.key) is not None)


def notes_on(values: Mapping[str, Any]) -> list[str]:
    """Returns the notes on the values of flags, all of which are accepted."""
    notes = (flag.note(value) for flag, value in given_flags(values) if flag.note is not None)
    return [note for note in notes if note is not None]


def overrides_of(values: Mapping[str, Any], verb: str = "train") -> list[Override]:
    """Returns the overrides that the given flags stand for; `values` is by flag key, None where a flag was not given.

    Raises:
        ConfigError: one message with every flag that is refused or contradicts another.
    """
    setting: dict[str, tuple[Flag, Any]] = {}
    problems = []
    values, corpus = with_corpus(with_urls(values))
    for flag, value in given_flags(values):
        try:
            fields = flag.fields_of(value, verb)
        except ConfigError as refusal:
            problems.append(str(refusal))
            continue
        for field, content in fields.items():
            other, before = setting.setdefault(field, (flag, content))
            if before != content:
                problems.append(
                    f"{other.option} and {flag.option} both set {field}, to {before} and {content}: keep one"
                )
    if verb == "train" and values.get("do_train") is None:
        problems += [
            f"--{name} without --do_train asks for a score alone, and task.py trains: add --do_train, or "
            f"{SCORE_ALONE} alone"
            for name in ("do_eval", "do_predict")
            if values.get(name)
        ]
    if problems:
        raise ConfigError("\n".join(problems))
    return [*((tuple(field.split(".")), content) for field, (_, content) in setting.items()), *corpus]


def base_of_flags(values: Mapping[str, Any], overrides: Sequence[Override] = ()) -> dict[str, Any]:
    """Returns the config that flags alone start from: pretrained weights, and a Hub data set or manifests.

    The default length and warm-up depend on `overrides`, which are all that will be set in this config.
    """
    address = re.split("[?#]", str(values.get("model_name_or_path")))[0]
    weights = values.get("model_size") or Path(address).name.removeprefix("whisper-")
    family = None if str(weights).lower().startswith(CTC_NAMES) else "whisper"
    language = values.get("name") or values.get("dataset_config_name")
    words = "-".join(str(part).lower() for part in (family, weights, language) if part)
    return {
        "run": {"name": re.sub(r"[^a-z0-9._-]+", "-", words).strip("-")},
        "data": _usual_data(values, overrides),
        "model": {"init": "pretrained"},
        "training": _usual_length(apply_overrides({}, overrides).get("training")),
    }


def _usual_data(values: Mapping[str, Any], overrides: Sequence[Override]) -> dict[str, Any]:
    values, _ = with_corpus(values)
    given = values.get("dataset") or values.get("dataset_name")
    manifests = {("data", split) for split in ("train", "validation", "test")}
    if given is None and any(path in manifests for path, _ in overrides):
        return {}
    name = given or DEFAULT_DATASET
    dataset = {"name": name}
    if "test" in re.split(r"[^A-Za-z0-9_.-]+", values.get("eval_split_name") or ""):
        # A script with two splits: the split that chooses the model gives no final score.
        dataset["test_split"] = None
    columns = {"audio_column_name": "audio"}
    if name == DEFAULT_DATASET:
        columns["text_column_name"] = "raw_transcription"
    return {"dataset": dataset, **columns}


def _usual_length(training: Any) -> dict[str, Any]:
    given = training if isinstance(training, Mapping) else {}
    steps = given.get("max_steps")
    if steps is None and given.get("num_train_epochs") is not None:
        return {}
    length = {"max_steps": DEFAULT_MAX_STEPS}
    if given.get("lr_scheduler_type") == "constant":
        # A length in epochs alone has no warm-up.
        return length
    known = steps if isinstance(steps, int) else DEFAULT_MAX_STEPS
    return {**length, "warmup_steps": min(DEFAULT_WARMUP_STEPS, known // 10)}


def storage_override(environment: Mapping[str, str]) -> list[Override]:
    """Returns `BUCKET_URI`, where it is set, as the storage path."""
    value = environment.get(STORAGE_VARIABLE)
    return [(("run", "storage_path"), value)] if value else []


def with_corpus(values: Mapping[str, Any]) -> tuple[dict[str, Any], list[Override]]:
    """Separates the flags that name a corpus: returns the values without them, and the fields that they set.

    For example, `--dataset common_voice:/data/cv --name sr`, a corpus with splits in its own format.

    Raises:
        ConfigError: a location in this format has only one split, or the location is wrong.
    """
    given = next((values[flag] for flag in _DATASET if values.get(flag) is not None), None)
    name, colon, path = str(given).partition(":")
    if given is None or not colon or name not in FORMATS:
        return dict(values), []
    if name not in WITH_SPLITS:
        raise ConfigError(
            f"--dataset {given}: {name}: is one split: give each as --set data.train={name}:…, --set "
            f"data.validation={name}:…"
        )
    language = next((values[flag] for flag in _LANGUAGE if values.get(flag) is not None), None)
    fields: list[Override] = []
    for field, flag in _SPLIT_FLAGS.items():
        options = {"language": language, "split": values.get(flag) if flag is not None else None}
        query = "&".join(
            f"{option}={quote(str(value), safe='+')}" for option, value in options.items() if value is not None
        )
        location = f"{given}{'&' if '?' in path else '?'}{query}" if query else given
        try:
            DataLocation.parse(location)
        except ValueError as error:
            raise ConfigError(f"--dataset {given}: {error}") from None
        fields.append((("data", field), location))
    taken = (*_DATASET, *_LANGUAGE, *filter(None, _SPLIT_FLAGS.values()))
    return {flag: value for flag, value in values.items() if flag not in taken}, fields
