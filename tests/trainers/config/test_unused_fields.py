"""A field that nothing reads is refused in a new run; one that has begun with it goes on, with or without it."""

import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.trainers.synthetic import config
from trainers.config.loader import build_config, read_yaml
from trainers.config.locations import variables_in
from trainers.config.overrides import parse_override
from trainers.config.unused_fields import default_of, refuse_unused_fields, unused_fields
from trainers.errors import ConfigError

SPECS = Path(__file__).parents[3] / "jobs" / "specs"
PRETRAINED: dict[str, Any] = {"init": "pretrained", "name_or_path": "/weights", "language": "English"}
CTC: dict[str, Any] = {"init": "scratch", "family": "ctc", "d_model": 16, "attention_heads": 2}
ZERO: dict[str, Any] = {"strategy.name": "deepspeed", "scaling.num_workers": 2}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model": {**PRETRAINED, "d_model": 256}},
            r"model\.d_model is 256, but model\.init is pretrained, and the weights",
        ),
        ({"model": {**PRETRAINED, "num_mel_bins": 128}}, r"model\.num_mel_bins is 128, .*: remove model\.num_mel_bins"),
        ({"model": {**PRETRAINED, "architecture": "hubert"}}, r"model\.architecture is hubert"),
        ({"model": {**PRETRAINED, "vocab_size": 400}}, r"model\.vocab_size is 400, but no byte-level BPE is learned"),
        ({"model": {**PRETRAINED, "vocabulary": "characters", "vocab_size": 400}}, r"model\.vocab_size is 400"),
        ({"model": {**CTC, "vocab_size": 400}}, r"model\.vocab_size is 400"),
        (
            {"model": {**PRETRAINED, "vocabulary": "own", "unk_token": "<unk>"}},
            r"model\.unk_token is <unk>, but .* own",
        ),
        ({"model": {**CTC, "vocabulary": "bpe", "word_delimiter_token": "_"}}, r"model\.word_delimiter_token is _"),
        ({"model": {**CTC, "architecture": "data2vec-audio", "feat_extract_norm": "group"}}, r"feat_extract_norm is"),
        (
            {"training.training_args": {"hub_model_id": "ana/sr", "hub_strategy": "end"}},
            r"hub_model_id has no effect, .*set hub\.model_id\ntraining\.training_args\.hub_strategy has no effect",
        ),
        (
            {"model.dtype": "bfloat16", "adapt.method": "lora"},
            r"model\.dtype is bfloat16, but .* new weights are float32",
        ),
        ({"model.revision": "v2"}, r"model\.revision is v2, but model\.init is scratch"),
        ({**ZERO, "strategy.stage3_prefetch_bucket_size": 9}, r"stage3_prefetch_bucket_size is 9, but .* is 2, not 3"),
        ({**ZERO, "strategy.zero_stage": 3, "strategy.allgather_bucket_size": 9}, r"allgather_bucket_size is 9"),
        (
            {"training.max_batch_duration_s": 9, "training.per_device_train_batch_size": 2},
            r"per_device_train_batch_size is 2, but training\.max_batch_duration_s sets the size of a batch",
        ),
        (
            {"model.max_context_s": 3, "training.max_batch_duration_s": 9, "training.full_context_fraction": 0.1},
            r"full_context_fraction is 0\.1, but training\.max_batch_duration_s limits",
        ),
        ({"training.lr_scheduler_type": "constant", "training.warmup_steps": 5}, r"training\.warmup_steps is 5"),
        (
            {"training.full_context_eval": False, "model.max_context_s": None},
            r"training\.full_context_eval is False, but model\.max_context_s is null",
        ),
        (
            {**ZERO, "strategy.zero_stage": 3, "model": {**CTC, "layerdrop": 0.1}},
            r"model\.layerdrop is 0\.1, but ranks that shard weights",
        ),
        (
            {"strategy.name": "fsdp", "scaling.use_gpu": True, "model": {**CTC, "layerdrop": 0.1}},
            r"model\.layerdrop is 0\.1, but ranks that shard weights",
        ),
    ],
)
def test_it_is_refused_by_name_with_the_reason(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        refuse_unused_fields(config(changes))


@pytest.mark.parametrize(
    ("changes", "setting"),
    [
        ({"training.lr_scheduler_type": "constant", "training.warmup_steps": 5}, "--set training.warmup_steps=0"),
        ({"model.revision": "v2"}, "--set model.revision=null"),
        (
            {"model": {**PRETRAINED, "vocabulary": "own", "unk_token": "<unk>"}},
            """--set 'model.unk_token="[UNK]"'""",
        ),
    ],
)
def test_what_sets_it_back_on_a_command_line_is_named_and_does(changes: dict[str, Any], setting: str) -> None:
    with pytest.raises(ConfigError) as caught:
        refuse_unused_fields(config(changes))
    assert f"or give its default ({setting})" in str(caught.value)
    (path, value) = parse_override(shlex.split(setting)[1])
    refuse_unused_fields(config({**changes, ".".join(path): value}))


def test_all_are_in_one_message() -> None:
    wanted = config({"model": {**PRETRAINED, "d_model": 256, "encoder_layers": 6}, "training.warmup_steps": 5})
    with pytest.raises(ConfigError) as caught:
        refuse_unused_fields(wanted)
    assert len(str(caught.value).splitlines()) == 2


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"model": PRETRAINED},
        {"model": CTC},
        {"model": {**CTC, "vocabulary": "bpe", "vocab_size": 400, "unk_token": "<u>"}},
        {"model": {**PRETRAINED, "vocabulary": "bpe", "vocab_size": 400}},
        {"model": {**PRETRAINED, "vocabulary": "characters", "word_delimiter_token": "_", "revision": "v2"}},
        {**ZERO, "strategy.zero_stage": 3, "model": {**CTC, "layerdrop": 0.0}},
        {**ZERO, "strategy.zero_stage": 3, "model": CTC},
        {**ZERO, "model": {**CTC, "layerdrop": 0.1}},
        {**ZERO, "strategy.allgather_bucket_size": 9},
        {**ZERO, "strategy.zero_stage": 3, "strategy.stage3_prefetch_bucket_size": 9},
        {"training.lr_scheduler_type": "constant_with_warmup", "training.warmup_steps": 5},
    ],
)
def test_what_is_read_is_taken(changes: dict[str, Any]) -> None:
    refuse_unused_fields(config(changes))


@pytest.mark.parametrize("path", sorted(SPECS.glob("*.yaml")), ids=lambda path: path.stem)
def test_no_recipe_has_one(path: Path) -> None:
    known = dict.fromkeys(variables_in(path.read_text(encoding="utf-8")), "/data")
    refuse_unused_fields(build_config(read_yaml(path), origin=path.name, environment=known))


def test_each_is_a_field() -> None:
    for changes in ({"model": PRETRAINED}, {"model": {**PRETRAINED, "vocabulary": "own"}}, {"model": CTC}, ZERO):
        wanted = config(changes)
        for name in unused_fields(wanted):
            default_of(wanted, name)
