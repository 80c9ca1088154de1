"""Describes what makes two runs the same experiment: everything that changes the computation, nothing else. Pure."""

from collections.abc import Mapping
from typing import Any

from pydantic_core import to_jsonable_python

from trainers.config.schema import TrainConfig
from trainers.data.batch_plan import default_window_shards
from trainers.run_folder.resume import FROM
from trainers.scoring.normalizers import normalizer_named
from trainers.scoring.ranking import ranking_rate
from trainers.training.planning import batch_shape

BEGAN_FROM = "run.resume"
# Part of the experiment only if checkpoints have a shard for each worker.
SHARDS = "scaling.num_workers"
_DATA = (
    "mix_temperature fingerprint use_language_column too_long_eval min_duration_s max_duration_s empty_text "
    "pack_segments_s"
)
# Fields of each part that are compared as they are; None for all fields except those of OUTSIDE_EXPERIMENT.
FIELDS: Mapping[str, set[str] | None] = {
    "run": {"seed"},
    "data": {*_DATA.split()},
    "checkpoint": {"checkpoint_score_attribute", "checkpoint_score_order", "refuse_if"},
    **dict.fromkeys(("model", "adapt", "augment", "training", "strategy")),
}
OUTSIDE_EXPERIMENT = {
    # Controls which files may be opened, not their content.
    "model": {"allow_pickle"},
    # May change within a run: length, intervals, reports and speed.
    "training": {
        "max_steps",
        "num_train_epochs",
        "extend",
        "eval_steps",
        "patience",
        "save_steps",
        "logging_steps",
        "report_to",
        "full_context_eval",
        "gradient_checkpointing",
        "torch_compile",
        "per_device_eval_batch_size",
        # Their product is in `utterances_per_step`.
        "per_device_train_batch_size",
        "global_batch_size",
        "gradient_accumulation_steps",
        # Compared argument by argument, except those that only affect loading and logging.
        "training_args",
    },
}
# Fields in which null means the value with which the run began or, for a new run, the default.
RESOLVED = (
    "data.normalizer",
    "data.use_language_column",
    "checkpoint.checkpoint_score_attribute",
    "training.shuffle_window_shards",
    "training.pad_to",
)
OUTSIDE_EXPERIMENT_PREFIXES = ("dataloader_", "log_", "logging_", "disable_tqdm", "report_to")


def describe(config: TrainConfig, data_keys: Mapping[str, str], began_from: str | None = None) -> dict[str, Any]:
    """Returns the experiment of a resolved config as flat names and values, to compare and to show differences.

    `data_keys` has the hash of the prepared set of each split and, by field, the content hash of each known file.
    `began_from` is the checkpoint that a continued run began from, if the config does not have it again.
    """
    shape = batch_shape(config, config.scaling.max_workers)
    resume = config.run.resume
    parts: dict[str, Any] = {
        BEGAN_FROM: resume if resume.startswith(FROM) else began_from,
        "data.train": data_keys["train"],
        "data.mix": [[member.name, member.weight] for member in config.data.mix] or None,
        # Chooses the best checkpoint; scores on two validation sets, or made in two ways, cannot be compared.
        "data.validation": data_keys["validation"],
        "data.normalizer": str(normalizer_named(config.data.normalizer_name)),
        # Source of the metric that ranks checkpoints, if it is not an error rate; other metrics may change.
        "scoring.metrics": config.scoring.source_of(config.checkpoint.checkpoint_score_attribute),
        "training.utterances_per_step": shape.global_batch_size,
        "training.forward_passes_per_step": shape.slots if shape.global_batch_size is None else None,
    }
    for part, fields in {**FIELDS, "decode": {*config.decode.ranking}}.items():
        content = getattr(config, part).model_dump(mode="json", include=fields, exclude=OUTSIDE_EXPERIMENT.get(part))
        parts |= {f"{part}.{name}": value for name, value in content.items()}
    for name, value in config.training.training_args.items():
        if not name.startswith(OUTSIDE_EXPERIMENT_PREFIXES):
            parts[f"training.training_args.{name}"] = value
    parts |= {content_name(name): key for name, key in data_keys.items() if "." in name}
    # Their scores decide which checkpoint may be the best.
    gated = {each.set for each in config.checkpoint.conditions} & config.evaluate.also.keys() & data_keys.keys()
    parts |= {content_name(f"evaluate.also.{name}"): data_keys[name] for name in gated}
    if config.strategy.is_sharded:
        parts[SHARDS] = f"{config.scaling.num_workers}, each with its shard"
    return parts


def resolve_fields(config: TrainConfig, cache_url: str, known: Mapping[str, Any] | None) -> TrainConfig:
    """Returns the config with a value in each of the RESOLVED fields that is null: the run's own, or the default.

    `known` is the description of the run's experiment; None for a new run.
    """
    languages = True
    rate = f"eval_{ranking_rate(config.model.language)}"
    window, pad_to = default_window_shards(cache_url) or 0, "bucket" if config.training.torch_compile else "longest"
    if known is not None:
        _, languages, rate, window, pad_to = (known[name] for name in RESOLVED)
    for name, value in zip(RESOLVED, (_normalizer(config, known), languages, rate, window, pad_to), strict=True):
        part, field = name.split(".")
        fields = getattr(config, part)
        if getattr(fields, field) is None:
            config = config.model_copy(update={part: fields.model_copy(update={field: value})})
    return config


def _normalizer(config: TrainConfig, known: Mapping[str, Any] | None) -> str:
    if not config.data.do_normalize_eval:
        return "none"
    # A description contains the normalizer's version, too.
    began_with = str(known["data.normalizer"]).partition(" ")[0] if known is not None else "none"
    return "basic" if began_with == "none" else began_with


def fill_missing_content_hashes(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `one` with the file hashes that only `other` has, since not all files are read each time."""
    unknown = {name for name in other.keys() - one.keys() if name.endswith(content_name(""))}
    return {**one, **{name: other[name] for name in unknown}}


def fill_new_fields(before: Mapping[str, Any], wanted: Mapping[str, Any], config: TrainConfig) -> dict[str, Any]:
    """Returns a description with the defaults of fields that only `wanted` has, since an earlier version wrote it."""
    filled = {**before}
    for name in wanted.keys() - before.keys():
        part, _, field = name.partition(".")
        # Other names are those of derived values.
        if part in type(config).model_fields and field in type(getattr(config, part)).model_fields:
            filled[name] = default_of(config, part, field)
    return filled


def default_of(config: TrainConfig, part: str, field: str) -> Any:
    """Returns the default of a field of a config's part, as JSON has it."""
    return to_jsonable_python(type(getattr(config, part)).model_fields[field].get_default(call_default_factory=True))


def content_name(name: str) -> str:
    """Returns the name that a description uses for the content of a field's file."""
    return f"{name}.content"
