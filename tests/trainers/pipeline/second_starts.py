"""Random changes between two starts of one run, and what each must come to, field by field."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tests.trainers.synthetic import config
from trainers.config.parts.strategy_part import StrategyPart
from trainers.config.schema import TrainConfig
from trainers.errors import ConfigError
from trainers.models.ctc.ctc_decode_part import CtcDecodePart


class Outcome(Enum):
    """What a changed field means for the second start."""

    EXACT = "it is said, and the weights come out bit for bit"
    ROUNDED = "it is said, and the weights come out equal up to rounding"
    REFUSED = "it is refused, by the field's name"


# Every field but the run's own address: other valid values than the first start's, and what a change of it must do.
FIELDS: Mapping[str, tuple[Outcome, tuple[Any, ...]]] = {
    "run.s3_endpoint_url": (Outcome.EXACT, ("http://127.0.0.1:9000",)),
    "run.s3_region": (Outcome.EXACT, ("eu-central-1",)),
    "run.s3_profile": (Outcome.EXACT, ("partner",)),
    "run.s3_anonymous": (Outcome.EXACT, (True,)),
    "run.s3_buckets": (Outcome.EXACT, ({"speech": {"profile": "partner"}},)),
    "run.gs_endpoint_url": (Outcome.EXACT, ("http://127.0.0.1:4443",)),
    "run.az_account": (Outcome.EXACT, ("speech",)),
    "run.az_endpoint_url": (Outcome.EXACT, ("http://127.0.0.1:10000/speech",)),
    "run.max_failures": (Outcome.EXACT, (0, 7)),
    "run.seed": (Outcome.REFUSED, (1, 2)),
    "run.resume": (Outcome.REFUSED, ("never", "from:/data/other/checkpoints/checkpoint-5")),
    "data.test": (Outcome.EXACT, ("/data/other_test.csv",)),
    "data.max_bad_fraction": (Outcome.EXACT, (0.5,)),
    "data.too_long_eval": (Outcome.REFUSED, ("skip",)),
    "data.cache_dir": (Outcome.EXACT, ("/data/prepared",)),
    # Other recordings and other texts have other hashes, which are compared; the same ones may be elsewhere.
    "data.encoding": (Outcome.EXACT, ("cp1251",)),
    "data.quoting": (Outcome.EXACT, ("none",)),
    "data.ignore_columns": (Outcome.EXACT, (("begin_time", "end_time"),)),
    "data.path_prefix": (Outcome.EXACT, ({"/home/me/": "/data/"},)),
    "data.ship": (Outcome.EXACT, (True,)),
    "data.local_cache_gb": (Outcome.EXACT, (1.5,)),
    "data.train": (Outcome.REFUSED, ("/data/other.csv",)),
    "data.validation": (Outcome.REFUSED, ("/data/other_valid.csv",)),
    "data.audio_column_name": (Outcome.REFUSED, ("file",)),
    "data.text_column_name": (Outcome.REFUSED, ("sentence",)),
    "data.slice_columns": (Outcome.EXACT, (("accent",),)),
    "data.do_lower_case": (Outcome.REFUSED, (True,)),
    "data.do_remove_punctuation": (Outcome.REFUSED, (True,)),
    "data.chars_to_ignore": (Outcome.REFUSED, (("?", "!"),)),
    "data.do_normalize_eval": (Outcome.REFUSED, (False,)),
    "data.normalizer": (Outcome.REFUSED, ("none", "whisper_basic", "whisper_english")),
    "data.fingerprint": (Outcome.REFUSED, ("metadata", "manifest")),
    "data.use_language_column": (Outcome.REFUSED, (False,)),
    "data.empty_text": (Outcome.REFUSED, ("train",)),
    "data.pack_segments_s": (Outcome.REFUSED, (2.0,)),
    "data.min_duration_s": (Outcome.REFUSED, (0.2,)),
    "data.max_duration_s": (Outcome.REFUSED, (2.5,)),
    "model.name_or_path": (Outcome.REFUSED, ("/data/weights",)),
    "model.revision": (Outcome.REFUSED, ("v2",)),
    "model.allow_pickle": (Outcome.EXACT, (True,)),
    "model.language": (Outcome.REFUSED, ("Serbian",)),
    "model.borrowed_language": (Outcome.REFUSED, ("Swahili",)),
    "model.task": (Outcome.REFUSED, ("translate",)),
    "model.max_context_s": (Outcome.REFUSED, (2, None)),
    "model.vocab_size": (Outcome.REFUSED, (400,)),
    "model.d_model": (Outcome.REFUSED, (32,)),
    "model.encoder_layers": (Outcome.REFUSED, (2,)),
    "model.decoder_layers": (Outcome.REFUSED, (2,)),
    "model.attention_heads": (Outcome.REFUSED, (4,)),
    "model.ffn_dim": (Outcome.REFUSED, (48,)),
    "model.num_mel_bins": (Outcome.REFUSED, (128,)),
    "model.max_label_tokens": (Outcome.REFUSED, (80,)),
    "model.dropout": (Outcome.REFUSED, (0.1,)),
    "model.attention_dropout": (Outcome.REFUSED, (0.1,)),
    "model.activation_dropout": (Outcome.REFUSED, (0.1,)),
    "model.apply_spec_augment": (Outcome.REFUSED, (True,)),
    "model.mask_time_prob": (Outcome.REFUSED, (0.1,)),
    "model.mask_feature_prob": (Outcome.REFUSED, (0.1,)),
    "model.mask_time_length": (Outcome.REFUSED, (5,)),
    "model.mask_feature_length": (Outcome.REFUSED, (5,)),
    "model.attn_implementation": (Outcome.REFUSED, ("eager",)),
    "model.family": (Outcome.REFUSED, ("whisper",)),
    "model.vocabulary": (Outcome.REFUSED, ("characters",)),
    "model.vocabulary_file": (Outcome.REFUSED, ("/data/vocab.json",)),
    "model.word_delimiter_token": (Outcome.REFUSED, ("_",)),
    "model.unk_token": (Outcome.REFUSED, ("<unk>",)),
    "model.pad_token": (Outcome.REFUSED, ("<pad>",)),
    "model.architecture": (Outcome.REFUSED, ("wavlm",)),
    "model.hidden_dropout": (Outcome.REFUSED, (0.1,)),
    "model.feat_proj_dropout": (Outcome.REFUSED, (0.1,)),
    "model.final_dropout": (Outcome.REFUSED, (0.1,)),
    "model.layerdrop": (Outcome.REFUSED, (0.1,)),
    "model.freeze_feature_encoder": (Outcome.REFUSED, (True,)),
    "model.feature_encoder_dim": (Outcome.REFUSED, (32,)),
    "model.feat_extract_norm": (Outcome.REFUSED, ("group",)),
    "model.ctc_loss_reduction": (Outcome.REFUSED, ("sum",)),
    "model.ctc_zero_infinity": (Outcome.REFUSED, (True,)),
    "adapt.method": (Outcome.REFUSED, ("freeze_encoder", "decoder_only", "lora")),
    "augment.no_speech_fraction": (Outcome.REFUSED, (0.1,)),
    "augment.speed_factors": (Outcome.REFUSED, ([0.9, 1.0, 1.1],)),
    "augment.speed_range": (Outcome.REFUSED, ([0.9, 1.1],)),
    "augment.gain_db": (Outcome.REFUSED, ([-6.0, 6.0],)),
    "augment.noise_manifest": (Outcome.REFUSED, ("/data/noise.csv",)),
    "augment.rir_manifest": (Outcome.REFUSED, ("/data/rirs.csv",)),
    "augment.time_masks": (Outcome.REFUSED, (2,)),
    "augment.frequency_masks": (Outcome.REFUSED, (2,)),
    "decode.method": (Outcome.EXACT, ("beam",)),
    "training.max_steps": (Outcome.REFUSED, (12, 5)),
    "training.extend": (Outcome.EXACT, ("rescale", "restart", "constant")),
    "training.per_device_train_batch_size": (Outcome.ROUNDED, (2,)),
    "training.global_batch_size": (Outcome.REFUSED, (8,)),
    "training.max_batch_duration_s": (Outcome.REFUSED, (20.0,)),
    "training.per_device_eval_batch_size": (Outcome.EXACT, (2, 5)),
    "training.gradient_accumulation_steps": (Outcome.ROUNDED, (2,)),
    "training.learning_rate": (Outcome.REFUSED, (1e-4,)),
    "training.warmup_steps": (Outcome.REFUSED, (2,)),
    "training.lr_scheduler_type": (Outcome.REFUSED, ("cosine",)),
    "training.weight_decay": (Outcome.REFUSED, (0.1,)),
    "training.max_grad_norm": (Outcome.REFUSED, (0.5,)),
    "training.eval_steps": (Outcome.EXACT, (1,)),
    "training.save_steps": (Outcome.EXACT, (2, 6)),
    "training.logging_steps": (Outcome.EXACT, (1, 3)),
    "training.shuffle_window_shards": (Outcome.REFUSED, (3,)),
    "training.pad_to": (Outcome.REFUSED, ("bucket",)),
    "training.fp16": (Outcome.REFUSED, (True,)),
    "training.bf16": (Outcome.REFUSED, (True,)),
    "training.gradient_checkpointing": (Outcome.ROUNDED, (True,)),
    "training.torch_compile": (Outcome.ROUNDED, (True,)),
    "decode.max_length": (Outcome.REFUSED, (60,)),
    "decode.num_beams": (Outcome.REFUSED, (2,)),
    "training.full_context_fraction": (Outcome.REFUSED, (0.5,)),
    "training.keep_timestamps": (Outcome.REFUSED, (0.2,)),
    "training.full_context_eval": (Outcome.EXACT, (False,)),
    "training.patience": (Outcome.EXACT, (50,)),
    "checkpoint.refuse_if": (Outcome.REFUSED, ({"validation.wer": "> 1000"},)),
    "checkpoint.average": (Outcome.EXACT, (2,)),
    "evaluate.base": (Outcome.EXACT, (False,)),
    "evaluate.also": (Outcome.EXACT, ({"other": "/data/other.csv"},)),
    "evaluate.guard": (Outcome.EXACT, ("default",)),
    "training.report_to": (Outcome.EXACT, ([],)),
    "training.training_args": (Outcome.EXACT, ({"dataloader_prefetch_factor": None}, {"logging_first_step": True})),
    "training.training_args.adam_beta2": (Outcome.REFUSED, (0.9,)),
    "scaling.num_workers": (Outcome.ROUNDED, (2,)),
    "scaling.use_gpu": (Outcome.ROUNDED, (True,)),
    "scaling.accelerator": (Outcome.ROUNDED, ("cpu",)),
    "scaling.label_selector": (Outcome.EXACT, ({"pool": "speech"},)),
    "scaling.resources_per_worker": (Outcome.EXACT, ({"CPU": 2.0},)),
    "scaling.placement_strategy": (Outcome.EXACT, ("SPREAD",)),
    "scaling.backend": (Outcome.ROUNDED, ("gloo",)),
    "scaling.price_per_gpu_hour": (Outcome.EXACT, (2.5,)),
    "strategy.name": (Outcome.REFUSED, ("deepspeed",)),
    "scoring.metrics": (Outcome.EXACT, ({"deletions": "trainers.scoring.metrics:ErrorRates"},)),
    "hub.push": (Outcome.EXACT, (True,)),
    "hub.model_id": (Outcome.EXACT, ("ana/sr",)),
    "hub.private": (Outcome.EXACT, (True, False)),
    "hub.license": (Outcome.EXACT, ("mit",)),
    "checkpoint.num_to_keep": (Outcome.EXACT, (1, None)),
    "checkpoint.checkpoint_score_attribute": (Outcome.REFUSED, ("eval_cer", "eval_ser")),
}
# Only together with other fields, or with one value.
ALONE: Mapping[str, str] = {
    **{f"strategy.{name}": "with strategy.name: deepspeed" for name in StrategyPart.model_fields if name != "name"},
    "scaling.accelerator_type": "with scaling.use_gpu",
    "run.name": "the run's address",
    "run.storage_path": "the run's address",
    "data.demo": "instead of data.train and data.validation",
    "data.dataset": "instead of data.train and data.validation",
    "data.mix": "instead of data.train",
    "data.mix_temperature": "with data.mix",
    "data.source": "instead of data.train and data.validation",
    "model.init": "with model.name_or_path",
    "checkpoint.interpolate": "with weights to begin with",
    "evaluate.require_better": "with weights to begin with",
    "model.dtype": "with adapt.method",
    "model.tokenizer_name": "with model.name_or_path",
    "model.feature_extractor_name": "with model.name_or_path",
    "model.full_context_matching": "with model.name_or_path",
    "model.full_context_matching_fraction": "with model.full_context_matching",
    "augment.noise_snr_db": "with augment.noise_manifest",
    "augment.noise_probability": "with augment.noise_manifest",
    "augment.rir_probability": "with augment.rir_manifest",
    "augment.time_mask_s": "with augment.time_masks",
    "augment.time_mask_fraction": "with augment.time_masks",
    "augment.frequency_mask_fraction": "with augment.frequency_masks",
    **{f"decode.{name}": "with decode.method" for name in CtcDecodePart.model_fields if name != "method"},
    "adapt.n": "with adapt.method",
    "adapt.r": "with adapt.method",
    "adapt.alpha": "with adapt.method",
    "adapt.dropout": "with adapt.method",
    "adapt.target_modules": "with adapt.method",
    "training.previous_text": "with data.pack_segments_s",
    "training.num_train_epochs": "instead of training.max_steps",
    "checkpoint.checkpoint_score_order": "with scoring.metrics",
}
FIRST = {
    "data.test": "/data/test.csv",
    "run.name": "run",
    "run.storage_path": "/data/runs",
    "training.global_batch_size": 4,
    "training.max_steps": 8,
    "training.save_steps": 4,
    "training.eval_steps": 2,
}
# The fields of a family are tried in a run of it.
FIRST_CTC: Mapping[str, Any] = {
    **FIRST,
    "model": {"init": "scratch", "family": "ctc", "architecture": "wav2vec2", "language": "English"},
}


@dataclass(frozen=True)
class SecondStart:
    """A start of a run with some fields changed.

    Attributes:
        changes: The fields and their new values.
        config: The whole config.
    """

    changes: dict[str, Any]
    config: TrainConfig

    def fields(self, outcome: Outcome) -> list[str]:
        """The changed fields that must come to this outcome."""
        return [name for name in self.changes if FIELDS[name][0] is outcome]


def second_start(generator: random.Random, first: Mapping[str, Any], names: list[str]) -> SecondStart:
    """A valid change of one to three of these fields."""
    while True:
        chosen = generator.sample(names, generator.choice([1, 1, 1, 2, 3]))
        changes = {name: generator.choice(FIELDS[name][1]) for name in chosen}
        if any(first.get(name) == value for name, value in changes.items()):
            continue
        if {"training.training_args", "training.training_args.adam_beta2"} <= set(changes):
            continue
        try:
            return SecondStart(changes, config({**first, **changes}))
        except ConfigError:
            # Two changes that exclude each other.
            continue
