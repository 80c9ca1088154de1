"""Fields that mean nothing beside the others of their config, and would be ignored. Pure.

What means nothing to a family of models is the family's to say (`foreign_fields`); what a part of the config can tell
by itself, its validators refuse. Here is what runs have begun with, and go on with.
"""

import json
import shlex
from typing import Any

from trainers.config.schema import TrainConfig
from trainers.errors import ConfigError

SIZES = (
    "architecture",
    "d_model",
    "encoder_layers",
    "decoder_layers",
    "attention_heads",
    "ffn_dim",
    "num_mel_bins",
    "max_label_tokens",
    "feature_encoder_dim",
    "feat_extract_norm",
)
# Values that mean what null, the default, means.
SAME_AS_DEFAULT = {"model.layerdrop": (0.0,)}
STAGE_3 = ("stage3_prefetch_bucket_size", "stage3_param_persistence_threshold")


def unread_fields(config: TrainConfig) -> dict[str, str]:
    """Each field of a config that nothing reads, whatever its value, and why."""
    return {**_of_model(config), **_of_strategy(config), **_of_training(config)}


def refuse_unread_fields(config: TrainConfig) -> None:
    """Refuses a new run whose config sets what nothing reads.

    Raises:
        ConfigError: names each field, the reason and the fix.
    """
    problems = [
        f"{name} is {value_of(config, name)}, but {why}: remove {name}, or give its default ({_setting(config, name)})"
        for name, why in unread_fields(config).items()
        if value_of(config, name) not in (default_of(config, name), *SAME_AS_DEFAULT.get(name, ()))
    ]
    if problems:
        raise ConfigError("\n".join(problems))


def value_of(config: TrainConfig, name: str) -> Any:
    """The value of a field by its dotted name."""
    part, field = name.split(".")
    return getattr(getattr(config, part), field)


def default_of(config: TrainConfig, name: str) -> Any:
    """The default of a field by its dotted name."""
    part, field = name.split(".")
    return type(getattr(config, part)).model_fields[field].get_default(call_default_factory=True)


def _setting(config: TrainConfig, name: str) -> str:
    """What sets a field back on a command line; JSON is YAML."""
    return f"--set {shlex.quote(f'{name}={json.dumps(default_of(config, name))}')}"


def _of_model(config: TrainConfig) -> dict[str, str]:
    model = config.model
    unread: dict[str, str] = {}
    if model.init == "pretrained":
        unread |= dict.fromkeys(
            (f"model.{name}" for name in SIZES), "model.init is pretrained, and weights have theirs"
        )
    else:
        unread["model.revision"] = "model.init is scratch, which takes nothing from the Hub"
    learns_bpe = model.vocabulary == "bpe" or (model.init == "scratch" and model.family != "ctc")
    if not learns_bpe:
        unread["model.vocab_size"] = "no byte-level BPE is learned (model.init, model.vocabulary)"
    if model.vocabulary == "own":
        tokens = ("model.word_delimiter_token", "model.unk_token", "model.pad_token")
        unread |= dict.fromkeys(tokens, "model.vocabulary is own, whose tokenizer has its own tokens")
    if model.vocabulary == "bpe":
        unread["model.word_delimiter_token"] = "model.vocabulary is bpe, which writes spaces"
    if model.init == "scratch" and model.family == "ctc" and model.architecture == "data2vec-audio":
        unread["model.feat_extract_norm"] = "data2vec-audio has layer norms only"
    return unread


def _of_strategy(config: TrainConfig) -> dict[str, str]:
    part = config.strategy
    unread: dict[str, str] = {}
    if part.shards_weights:
        unread["model.layerdrop"] = "ranks that shard weights (ZeRO-3, FSDP2) run the same layers"
    if part.name != "deepspeed" or part.ds_config is not None:
        # Refused by the part itself.
        return unread
    if part.stage == 3:
        unread["strategy.allgather_bucket_size"] = "strategy.zero_stage is 3, which gathers layer by layer"
    else:
        unread |= dict.fromkeys((f"strategy.{name}" for name in STAGE_3), f"strategy.zero_stage is {part.stage}, not 3")
    return unread


def _of_training(config: TrainConfig) -> dict[str, str]:
    part = config.training
    unread: dict[str, str] = {}
    if part.max_batch_duration_s is not None:
        unread["training.per_device_train_batch_size"] = "training.max_batch_duration_s sizes the batch"
        unread["training.full_context_fraction"] = (
            "training.max_batch_duration_s bounds the padded seconds of a batch, which the whole context would exceed"
        )
    if config.model.max_context_s is None:
        unread["training.full_context_eval"] = "model.max_context_s is null: each score is at the whole context"
    if part.lr_scheduler_type == "constant":
        unread["training.warmup_steps"] = "training.lr_scheduler_type constant has no warm-up; constant_with_warmup has"
    return unread
