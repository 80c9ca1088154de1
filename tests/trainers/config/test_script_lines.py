"""Command lines of the public fine-tuning scripts: every argument is known, and means what it means there."""

import json
import re
import shlex
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest
from transformers import Seq2SeqTrainingArguments

from tests.trainers.config import public_arguments
from trainers.config.family_table import decode_parts, family_parts
from trainers.config.flags.flag import MAPPING, NUMBER, SWITCH, TEXT, WHOLE, WORDS, Flag
from trainers.config.flags.task_line import FLAGS, parser
from trainers.config.flags.trainer_flags import PASSED_ON
from trainers.config.parts.decode_part import DecodePart
from trainers.config.parts.model_part import ModelPart
from trainers.config.schema import TrainConfig
from trainers.errors import ConfigError
from trainers.main import config_of, parse
from trainers.models.ctc.ctc_part import CtcPart
from trainers.training.arguments import OWNED, training_arguments

PLAIN = "--model_size tiny --output_dir /runs/a"
WHISPER_HINDI = """
    --model_name_or_path="openai/whisper-small" --dataset_name="mozilla-foundation/common_voice_17_0"
    --dataset_config_name="hi" --language="hindi" --task="transcribe" --train_split_name="train+validation"
    --eval_split_name="test" --max_steps="5000" --output_dir="./whisper-small-hi" --per_device_train_batch_size="16"
    --gradient_accumulation_steps="2" --per_device_eval_batch_size="16" --logging_steps="25" --learning_rate="1e-5"
    --warmup_steps="500" --eval_strategy="steps" --eval_steps="1000" --save_strategy="steps" --save_steps="1000"
    --generation_max_length="225" --preprocessing_num_workers="16" --max_duration_in_seconds="30"
    --text_column_name="sentence" --freeze_feature_encoder="False" --gradient_checkpointing --fp16 --use-gpu
    --do_train --do_eval --predict_with_generate --use_auth_token
"""


@pytest.fixture(autouse=True)
def no_surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("BUCKET_URI", "RAYSCRIBE_CONFIG", "RAY_JOB_CONFIG_JSON_ENV_VAR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


def built(line: str) -> TrainConfig:
    config, _ = config_of(parse(shlex.split(line)))
    assert isinstance(config, TrainConfig)
    return config


def field_of(config: TrainConfig, field: str) -> Any:
    value: Any = config
    for name in field.split("."):
        value = value[name] if isinstance(value, dict) else getattr(value, name)
    return value


def annotation_of(field: str) -> Any:
    """The type of a dotted field of the config; whatever is below a free mapping exists."""
    model: Any = TrainConfig
    for name in field.split("."):
        if not isinstance(model, type) or not hasattr(model, "model_fields"):
            return model
        of_families: dict[Any, Any] = {ModelPart: family_parts, DecodePart: decode_parts}
        parts = of_families[model]().values() if model in of_families else [model]
        annotation = next(part.model_fields[name].annotation for part in parts if name in part.model_fields)
        model = next((each for each in get_args(annotation) if hasattr(each, "model_fields")), annotation)
    return model


@pytest.mark.parametrize("script", ["SEQ2SEQ", "SEQ2SEQ_STREAMING", "CTC", "GAUDI", "LAUNCHER", "DROPPED"])
def test_every_argument_of_the_public_scripts_is_in_the_table(script: str) -> None:
    assert set(getattr(public_arguments, script).split()) - {flag.key for flag in FLAGS} == set()


def test_every_argument_of_the_installed_trainer_is_in_the_table() -> None:
    assert {field.name for field in fields(Seq2SeqTrainingArguments)} - {flag.key for flag in FLAGS} == set()


def test_no_argument_is_in_the_table_twice() -> None:
    keys = [flag.key for flag in FLAGS]
    assert sorted({key for key in keys if keys.count(key) > 1}) == []


def test_a_flag_sets_fields_that_exist_or_says_why_it_does_not() -> None:
    for flag in FLAGS:
        assert flag.field or flag.reason, flag.name
        for field in flag.field.split(", ") if flag.field else ():
            annotation_of(field)


def test_reasons_name_fields_that_exist() -> None:
    named = rf"\b(?:{'|'.join(TrainConfig.model_fields)})\.(?!md\b)[a-z_0-9.]*[a-z_0-9]"
    for field in {field for flag in FLAGS for field in re.findall(named, flag.reason)}:
        if not field.startswith("job."):
            annotation_of(field)


@pytest.mark.parametrize("flag", PASSED_ON, ids=lambda flag: flag.key)
def test_what_is_passed_on_has_the_type_that_the_trainer_has(flag: Flag) -> None:
    field = next(field for field in fields(Seq2SeqTrainingArguments) if field.name == flag.name)
    words = {
        SWITCH: ("bool",),
        WHOLE: ("int",),
        NUMBER: ("float",),
        TEXT: ("str",),
        WORDS: ("list",),
        MAPPING: ("dict",),
    }
    written = str(field.type)
    assert any(word in written for word in words.get(flag.kind, ("bool", "str")))
    assert field.init


def test_what_rayscribe_sets_itself_is_not_passed_on() -> None:
    passed_on = {flag.name for flag in PASSED_ON}
    assert passed_on & set(OWNED) == set()


def test_what_is_passed_on_reaches_the_trainer(tmp_path: Path) -> None:
    line = """--adam_beta1 0.8 --optim=adamw_torch --dataloader-num-workers 2 --logging_first_step
        --lr_scheduler_type cosine_with_restarts --lr_scheduler_kwargs '{"num_cycles": 2}'
        --skip_memory_metrics=False"""
    made = training_arguments(built(f"{PLAIN} {line}"), output_dir=tmp_path, accumulation=1, on_gpu=False)
    assert (made.adam_beta1, made.optim, made.dataloader_num_workers) == (0.8, "adamw_torch", 2)
    assert (made.logging_first_step, made.skip_memory_metrics) == (True, False)
    assert made.lr_scheduler_kwargs == {"num_cycles": 2}


def test_a_line_of_the_whisper_example_means_what_it_means_there(tmp_path: Path) -> None:
    config = built(WHISPER_HINDI)
    assert config.data.dataset is not None
    assert config.data.dataset.model_dump() == {
        "name": "mozilla-foundation/common_voice_17_0",
        "config_name": "hi",
        "revision": None,
        "train_split": "train+validation",
        "validation_split": "test",
        "test_split": None,
    }
    assert (config.data.text_column_name, config.data.audio_column_name) == ("sentence", "audio")
    assert (config.run.storage_path, config.run.name) == (str(tmp_path), "whisper-small-hi")
    assert (config.model.name_or_path, config.model.language) == ("openai/whisper-small", "hindi")
    training = config.training
    assert (training.max_steps, training.warmup_steps, training.save_steps, training.eval_steps) == (
        5000,
        500,
        1000,
        1000,
    )
    assert (training.fp16, training.gradient_checkpointing, training.gradient_accumulation_steps) == (True, True, 2)


def test_a_line_of_the_ctc_example_means_what_it_means_there() -> None:
    config = built(
        """--dataset_name=common_voice --model_name_or_path=facebook/wav2vec2-large-xlsr-53 --dataset_config_name=tr
        --num_train_epochs=15 --per_device_train_batch_size=16 --gradient_accumulation_steps=2 --learning_rate=3e-4
        --warmup_steps=500 --eval_strategy=steps --text_column_name=sentence --length_column_name=input_length
        --save_steps=400 --eval_steps=100 --layerdrop=0.0 --save_total_limit=3 --freeze_feature_encoder
        --gradient_checkpointing --chars_to_ignore , ? . ! - \\; \\: \\" “ % ‘ ” �
        --group_by_length --do_train --do_eval"""
    )
    assert config.run.name == "wav2vec2-large-xlsr-53-tr"
    # In the class that the script makes of them, !-; is a range.
    assert "".join(config.data.chars_to_ignore) == "!\"#$%&'()*+,-./0123456789:;?‘“”�"
    assert isinstance(config.model, CtcPart)
    assert (config.model.layerdrop, config.model.freeze_feature_encoder) == (0.0, True)
    training = config.training
    assert (training.num_train_epochs, training.max_steps, training.save_steps, training.eval_steps) == (
        15,
        None,
        400,
        100,
    )
    assert config.checkpoint.num_to_keep == 3


@pytest.mark.parametrize(
    ("flags", "field", "value"),
    [
        ("--bf16", "training.bf16", True),
        ("--bf16=True", "training.bf16", True),
        ("--bf16 False", "training.bf16", False),
        ("--no_bf16", "training.bf16", False),
        ("--train-split-name=train[:10%]", "data.dataset.train_split", "train[:10%]"),
        ("--eval_split_name dev", "data.dataset.test_split", "test"),
        ("--eval_split_name test[:50]", "data.dataset.test_split", None),
        ("--min_duration_in_seconds 0.0", "data.min_duration_s", 0.0),
        ("--report_to none", "training.report_to", []),
        ("--report_to tensorboard wandb", "training.report_to", ["tensorboard", "wandb"]),
        ("--metric_for_best_model cer --greater_is_better False", "checkpoint.checkpoint_score_attribute", "eval_cer"),
        (r"--chars_to_ignore ',?' '\-'", "data.chars_to_ignore", (",", "-", "?")),
        ("--save_total_limit 2", "checkpoint.num_to_keep", 2),
        ("--num_train_epochs 3", "training.max_steps", None),
        ("--num_train_epochs 3 --max_steps -1", "training.num_train_epochs", 3.0),
        ("--num_train_epochs 3", "training.warmup_steps", 0),
        ("--per_gpu_train_batch_size 3", "training.per_device_train_batch_size", 3),
        ("--no_cuda", "scaling.use_gpu", False),
        ("--freeze_feature_encoder", "model.freeze_feature_encoder", True),
        ("--freeze_encoder", "adapt.method", "freeze_encoder"),
        ("--fsdp 'full_shard auto_wrap' --use-gpu", "strategy.name", "fsdp"),
        ("--fsdp=False", "strategy.name", "ddp"),
        ("--mask_time_prob 0.1", "model.apply_spec_augment", True),
        ("--mask_feature_prob=0", "model.apply_spec_augment", False),
        ("--layerdrop=0.1", "model.layerdrop", 0.1),
        ("--ctc_zero_infinity True", "model.ctc_zero_infinity", True),
        ("--adafactor", "training.training_args.optim", "adafactor"),
        ("--resume_from_checkpoint True", "run.resume", "auto"),
        ("--resume_from_checkpoint=False", "run.resume", "never"),
        ("--output_dir s3://bucket/runs/sr/", "run.storage_path", "s3://bucket/runs"),
        ("--output_dir s3://bucket/runs/sr/", "run.name", "sr"),
        ("--output_dir /sr", "run.storage_path", "/"),
        ("--push_to_hub", "hub.push", True),
        ("--push_to_hub --hub_model_id ana/sr", "hub.model_id", "ana/sr"),
        ("--push_to_hub --hub_private_repo", "hub.private", True),
        ("--push_to_hub --hub_strategy end --hub_revision main", "hub.push", True),
    ],
)
def test_a_flag_is_short_for_a_field(flags: str, field: str, value: Any) -> None:
    assert field_of(built(f"--model_size tiny --dataset_name a/b {flags}"), field) == value


@pytest.mark.parametrize(
    "flags",
    [
        "--do_train --do_eval --do_predict",
        "--do_train True --do_eval=True",
        "--eval_strategy steps --save_strategy=steps --logging_strategy steps --evaluation_strategy steps",
        "--overwrite_output_dir=False --push_to_hub False --load_best_model_at_end",
        "--predict_with_generate --group_by_length --length_column_name input_length",
        "--preprocessing_num_workers 16 --overwrite_cache=False --preprocessing_only False",
        "--freeze_encoder False --add_adapter False",
        "--eval_metrics wer cer",
        "--half_precision_backend auto --local_rank=-1 --ddp_timeout 1800",
        "--use_habana=False --use_lazy_mode False --distribution_strategy ddp",
    ],
)
def test_what_always_happens_may_be_asked_for(flags: str) -> None:
    assert built(f"{PLAIN} {flags}") == built(PLAIN)


@pytest.mark.parametrize(
    ("flags", "instead"),
    [
        ("--overwrite_output_dir", "run.name"),
        ("--eval_strategy no", "training.eval_steps"),
        ("--eval_strategy epoch", "training.eval_steps"),
        ("--evaluation_strategy=epoch", "training.eval_steps"),
        ("--save_strategy epoch", "training.save_steps"),
        ("--save_strategy=no", "training.save_steps"),
        ("--do_train=False --do_eval", "--verb evaluate"),
        ("--do_eval", "--verb evaluate"),
        ("--do_train --do_eval False", "training.eval_steps"),
        ("--preprocessing_only", "--verb prepare"),
        ("--predict_with_generate False", "decode.max_length"),
        ("--warmup_ratio 0.1", "training.warmup_steps"),
        ("--metric_for_best_model loss", "checkpoint.checkpoint_score_attribute"),
        ("--greater_is_better", "checkpoint.checkpoint_score_attribute"),
        ("--resume_from_checkpoint /runs/a/checkpoint-10", "run.resume: from:"),
        ("--use_cpu False", "scaling.use_gpu"),
        ("--max_train_samples 100", "data.dataset.train_split"),
        ("--eval_metrics wer bleu", "bleu"),
        ("--output_dir .", "run.name"),
        ("--token hf_abc", "HF_TOKEN"),
        ("--hub_token hf_abc", "HF_TOKEN"),
        ("--push_to_hub_model_id sr", "hub.model_id"),
        ("--hub_revision v2", "branch main"),
        ("--hub_strategy every_save", "run.storage_path"),
        ("--local_rank 0", "scaling.num_workers"),
        ("--use_habana", "scaling.use_gpu"),
        ("--world_size 8", "--num-workers N"),
        ("--use_mpi", "--num-workers N"),
        ("--use_deepspeed", "--deepspeed ds_config.json"),
        ("--fsdp 'shard_grad_op offload' --use-gpu", "offload, shard_grad_op"),
    ],
)
def test_what_is_not_done_is_refused_with_what_to_use_instead(flags: str, instead: str) -> None:
    with pytest.raises(ConfigError, match=rf"(?m)^--\w+ .*{re.escape(instead)}"):
        built(f"--model_size tiny {flags}")


@pytest.mark.parametrize("size", ["mini", "Tiny", "large-v9"])
def test_a_size_that_whisper_does_not_have_is_refused_with_those_that_it_has(size: str) -> None:
    with pytest.raises(ConfigError, match=rf"--model_size {size}: the sizes are tiny, .*large-v3-turbo; --model_name"):
        built(f"--model_size {size}")


def test_a_deepspeed_config_is_the_strategy(tmp_path: Path) -> None:
    names = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping")
    zero = {"stage": 2, "overlap_comm": True}
    (tmp_path / "ds.json").write_text(json.dumps({**dict.fromkeys(names, "auto"), "zero_optimization": zero}))
    strategy = built(f"{PLAIN} --deepspeed ds.json").strategy
    assert (strategy.name, strategy.stage) == ("deepspeed", 2)


@pytest.mark.parametrize("name", ["token", "hub_token", "push_to_hub_token"])
def test_a_token_in_a_command_is_refused_and_not_repeated(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"^--{name} \(not shown\): a token has no place in a command") as caught:
        built(f"{PLAIN} --{name} hf_abc")
    assert "hf_abc" not in str(caught.value)


def test_an_argument_that_is_not_known_is_named_without_its_value(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        built(f"{PLAIN} --password hunter22 --api_key=hunter22")
    said = capsys.readouterr().err
    assert "unrecognized arguments: --password --api_key" in said and "hunter22" not in said


def test_all_that_is_refused_is_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        built(f"{PLAIN} --eval_strategy epoch --push_to_hub_organization lab --do_train")
    assert [line.partition(":")[0] for line in str(caught.value).splitlines()] == [
        "--eval_strategy epoch",
        "--push_to_hub_organization lab",
    ]


def test_another_verb_agrees_with_the_flags_that_ask_for_it() -> None:
    assert built(f"{PLAIN} --verb evaluate --model m --do_train=False --do_eval") == built(PLAIN)
    assert built(f"{PLAIN} --verb prepare --preprocessing_only") == built(PLAIN)
    with pytest.raises(ConfigError, match="--do_train True"):
        built(f"{PLAIN} --verb prepare --do_train")


def test_two_flags_of_one_field_agree_or_are_refused() -> None:
    assert built(f"{PLAIN} --run_name a").run.name == "a"
    with pytest.raises(ConfigError, match=r"--output_dir and --run-name both set run.name, to a and b: keep one"):
        built(f"{PLAIN} --run_name b")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--bf16 maybe", "True or False"),
        ("--eval_steps 0.2", "whole number of optimizer steps"),
        ("--lr_scheduler_kwargs cycles=2", "JSON"),
        ("--max_step 5", "did you mean --max_steps"),
    ],
)
def test_a_value_that_cannot_be_read_ends_with_its_fix(
    line: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        built(f"{PLAIN} {line}")
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_the_help_shows_what_is_usual_and_names_the_page_of_the_rest() -> None:
    text = parser().format_help()
    assert "docs/flags.md" in text
    assert "--eval_split_name" in text
    assert "--use_habana" not in text
