"""Translates the arguments of a public fine-tuning script into the content of an equivalent recipe.

The tables of flags define what each argument means. For an argument that is not given, the recipe gets the script's
default, if that changes training or scores. Sources: transformers' examples/pytorch/speech-recognition, and its
TrainingArguments.
"""

import argparse
import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, NoReturn

from trainers.config.flags.task_line import (
    BY_KEY,
    add_sections,
    base_of_flags,
    given_flags,
    notes_on,
    overrides_of,
    usually_spelled,
)
from trainers.config.loader import build_config, read_ds_config
from trainers.config.overrides import Override, apply_overrides
from trainers.config.parts.data_part import DataPart
from trainers.errors import ConfigError

_TRAINER = {
    "num_train_epochs": 3.0,
    "per_device_train_batch_size": 8,
    "per_device_eval_batch_size": 8,
    "learning_rate": 5e-5,
    "warmup_steps": 0,
    "save_steps": 500,
}
_DATA = {
    "audio_column_name": "audio",
    "text_column_name": "text",
    "eval_split_name": "test",
    "max_duration_in_seconds": 20.0,
    "min_duration_in_seconds": 0.0,
}
# From the generation config of Whisper's weights.
_WHISPER = {"generation_max_length": 448}
_CTC = {
    **dict.fromkeys(("attention_dropout", "activation_dropout", "feat_proj_dropout", "hidden_dropout"), 0.0),
    **dict.fromkeys(("final_dropout", "layerdrop", "mask_feature_prob"), 0.0),
    "mask_time_prob": 0.05,
    "mask_time_length": 10,
    "mask_feature_length": 10,
    "freeze_feature_encoder": True,
}
_STREAMING = "run_speech_recognition_seq2seq_streaming.py"
# Values of flags, by script. The error rates of the first two scripts are computed on unnormalized texts.
SCRIPTS: Mapping[str, Mapping[str, Any]] = {
    "run_speech_recognition_seq2seq.py": {
        **_TRAINER,
        **_DATA,
        "train_split_name": "train",
        "do_lower_case": True,
        "do_normalize_eval": False,
        **_WHISPER,
    },
    "run_speech_recognition_ctc.py": {
        **_TRAINER,
        **_DATA,
        **_CTC,
        "train_split_name": "train+validation",
        "do_lower_case": True,
        "do_normalize_eval": False,
    },
    _STREAMING: {**_TRAINER, **_DATA, **_WHISPER, "train_split_name": "train"},
}
# The script of which a renamed one is a copy, by the value of --as.
KINDS = {"seq2seq": "run_speech_recognition_seq2seq.py", "ctc": "run_speech_recognition_ctc.py"}
# The name of an option; any other word may be an option's value, and a secret.
_NAME = re.compile(r"--[A-Za-z][\w.-]*|-[A-Za-z]")
_ORDER = (
    "the script shuffles by torch's generator, and the recipe by its batch plan (run.seed): an epoch has the same "
    "clips in other batches, so that losses and error rates differ as those of two seeds do; if one batch is the "
    "complete set, they are the same except for rounding"
)
_BEST = (
    "the script scores and stores its last weights, the recipe its best ones (checkpoint.checkpoint_score_attribute): "
    "validation scores of the last step are in its log and report"
)
_ALONE = "it requests only a score: rayscribe evaluate RECIPE --model MODEL scores a model with this recipe"
_EVERY_CHECKPOINT = (
    "each checkpoint is scored, so save_steps {0} must be a multiple of it: they are scored every {0} steps"
)


@dataclass(frozen=True)
class ScriptRecipe:
    """The recipe that a script's arguments become.

    Attributes:
        content: The recipe's content; only what differs from the defaults.
        defaults: Dotted names of the fields in `content` whose values are the script's own defaults.
        left_out: A line for each argument that is not carried over, with the reason.
        notes: Non-obvious behavior of the script, and what the recipe does instead.
    """

    content: dict[str, Any]
    defaults: tuple[str, ...]
    left_out: tuple[str, ...]
    notes: tuple[str, ...]


def recipe_of_script(script: str, arguments: Sequence[str], overrides: Sequence[Override]) -> ScriptRecipe:
    """Returns the recipe for the arguments of one of SCRIPTS; arguments take precedence over `overrides`.

    Raises:
        ConfigError: The script is unknown, an argument cannot be read, or the recipe would not be valid.
    """
    if script not in SCRIPTS:
        if any(PurePath(word).name in SCRIPTS for word in arguments):
            raise ConfigError(
                f"{script}: not a known launcher: begin the line with what starts the script, such as python or "
                "torchrun"
            )
        raise ConfigError(
            f"{script}: only {', '.join(SCRIPTS)} have a recipe that does the same: --as seq2seq or --as ctc says "
            "which one it is a copy of, and `rayscribe launch` runs any script as it is"
        )
    values, left_out = _read(script, arguments)
    for name, what in (("model_name_or_path", "the weights that it trains"), ("dataset_name", "what it trains on")):
        if values.get(name) is None:
            raise ConfigError(f"{script}: --{name} is missing: name {what}")
    added = _defaults(script, values)
    both = {**added, **values}
    each, save = both.get("eval_steps"), both["save_steps"]
    if each is not None and save % each:
        left_out = (*left_out, f"--eval_steps {both.pop('eval_steps')}: {_EVERY_CHECKPOINT.format(save)}")
    fields = [*overrides, *overrides_of(both)]
    fields += _global_batch(apply_overrides({}, fields))
    content = apply_overrides(base_of_flags(both, fields), fields)
    if "dataset" in content["data"]:
        # The script has no final score on a third split.
        content["data"]["dataset"]["test_split"] = None
    notes = notes_on(values)
    if script != _STREAMING:
        # The script leaves out clips that the model cannot take; without this, they would stop the run.
        content["data"]["too_long_eval"] = "skip"
        notes.append(_scored_note(content["data"]))
    notes += [_ORDER] if values.get("load_best_model_at_end") else [_ORDER, _BEST]
    trimmed = without_defaults(content, script)
    of_defaults = {".".join(path) for path, _ in overrides_of({**added, "do_train": True})}
    defaults = tuple(name for name in _names(trimmed) if name in of_defaults)
    return ScriptRecipe(trimmed, defaults, tuple(left_out), tuple(notes))


def without_defaults(content: Mapping[str, Any], origin: str) -> dict[str, Any]:
    """Returns the content of a recipe without the fields that have their defaults.

    Raises:
        ConfigError: The content is not valid.
    """
    differing = build_config(content, origin=origin).model_dump(mode="json", exclude_defaults=True)
    return _common(content, {**differing, "job": content.get("job", {})})


def _common(content: Mapping[str, Any], differing: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in content.items():
        other = differing.get(key)
        if isinstance(value, Mapping) and isinstance(other, Mapping):
            if inner := _common(value, other):
                found[key] = inner
        elif key in differing:
            found[key] = value
    return found


def _names(content: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield from _names(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{self.prog}: {message}")


def _read(script: str, arguments: Sequence[str]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Returns the values of the flags that have a meaning here, and a line for each other argument."""
    parser = _Parser(prog=script, add_help=False, allow_abbrev=False)
    add_sections(parser)
    parsed, unknown = parser.parse_known_args(usually_spelled(arguments))
    values, left_out = {}, [*_unknown(script, unknown, arguments)]
    for flag, value in given_flags(vars(parsed)):
        try:
            flag.fields_of(value, "train")
        except ConfigError as refusal:
            left_out.append(str(refusal))
        else:
            values[flag.key] = value
    if not values.get("do_train"):
        scored = [f"--{name}" for name in ("do_eval", "do_predict") if values.pop(name, None)]
        left_out += [f"{name} without --do_train: {_ALONE}" for name in scored]
    if "freeze_feature_encoder" not in SCRIPTS[script] and values.get("freeze_feature_encoder") is False:
        # Whisper has no feature encoder to freeze; the field belongs to other families.
        values.pop("freeze_feature_encoder")
    if (values.get("max_steps") or -1) > 0:
        values.pop("num_train_epochs", None)
    path = values.get("deepspeed")
    if path is not None and (unread := read_ds_config({"strategy": {"ds_config": path}})[1]):
        left_out.append(f"--deepspeed {unread[0].removeprefix('strategy.ds_config: ')}")
        values.pop("deepspeed")
    return values, tuple(left_out)


def _unknown(script: str, words: Sequence[str], arguments: Sequence[str]) -> Iterator[str]:
    options = [f"--{key}" for key in BY_KEY]
    for word, before in zip(words, ["", *words], strict=False):
        name = word.partition("=")[0]
        if _NAME.fullmatch(before) and not word.startswith("--"):
            # The value of an unknown option, which may be a secret.
            continue
        near = difflib.get_close_matches(name, options, n=1) if name.startswith("--") else []
        if near:
            yield f"{name}: not an argument of {script}; did you mean {near[0]}?"
        elif name.endswith((".json", ".yaml", ".yml")):
            yield f"{name}: the file is not read: write its arguments into the line"
        elif _NAME.fullmatch(name):
            yield f"{name}: not a known argument of {script}"
        else:
            place = arguments.index(word) + 1 if word in arguments else "?"
            yield f"word {place} of the arguments (not shown): not a known argument of {script}"


def _defaults(script: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the script's defaults for arguments that are not given."""
    taken = {".".join(path) for path, _ in overrides_of({**values, "do_train": True})}
    added = {key: value for key, value in SCRIPTS[script].items() if key not in values}
    if "training.max_steps" in taken:
        added.pop("num_train_epochs", None)
    if values.get("eval_strategy") == "steps" or values.get("evaluation_strategy") == "steps":
        # As in the Trainer: eval_steps defaults to logging_steps.
        added |= {} if "eval_steps" in values else {"eval_steps": values.get("logging_steps", 500)}
    return {key: value for key, value in added.items() if taken.isdisjoint(BY_KEY[key].fields_of(value, "train"))}


def _scored_note(data: Mapping[str, Any]) -> str:
    """Returns a note on the clips that the script does not score."""
    least, most = (
        data.get(f"{name}_duration_s", DataPart.model_fields[f"{name}_duration_s"].default) for name in ("min", "max")
    )
    return (
        f"the script takes clips that are longer than {least:g} s and shorter than {most:g} s, of the eval split, too; "
        "the recipe scores all of that split that the model can take, and trains on a clip of exactly a limit: for the "
        "script's scores, leave these clips out of the split itself"
    )


def _global_batch(content: Mapping[str, Any]) -> list[Override]:
    """Returns an override for the global batch of the most workers; empty if the number of workers is fixed."""
    count, training = content.get("scaling", {}).get("num_workers"), content["training"]
    if not isinstance(count, Mapping):
        return []
    each = training["per_device_train_batch_size"] * training.get("gradient_accumulation_steps", 1)
    return [(("training", "global_batch_size"), each * count["max"])]
