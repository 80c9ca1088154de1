"""The Whisper family: its processor, language and task tokens, labels and limits."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import GenerationConfig, WhisperConfig, WhisperProcessor

from trainers.config.parts.model_part import CTC_FIELDS, ModelPart
from trainers.errors import ConfigError
from trainers.models.family import Limits
from trainers.models.pretrained import open_pretrained
from trainers.models.whisper.whisper_export import write_processor
from trainers.models.whisper.whisper_generation import language_of, read_generation_config, settle_generation
from trainers.models.whisper.whisper_scratch import (
    FULL_CONTEXT_S,
    LANGUAGES,
    START,
    language_code,
    new_config,
    new_generation_config,
    new_processor,
)

if TYPE_CHECKING:
    from trainers.models.recognizer import Recognizer

# Start, language, task and no-timestamps stand before the first token that is generated.
PROMPT_TOKENS = 4
DROPOUTS = ("dropout", "attention_dropout", "activation_dropout")
SIZES = (
    "d_model",
    "encoder_layers",
    "decoder_layers",
    "encoder_attention_heads",
    "decoder_attention_heads",
    "encoder_ffn_dim",
    "decoder_ffn_dim",
    "num_mel_bins",
    "max_source_positions",
    "max_target_positions",
    "vocab_size",
)
# Increased when `encode_labels` gives other ids for the same tokenizer, so that labels that are kept are not used.
LABELS_VERSION = 1


class WhisperFamily:
    """See `family.Family`; its processor is a WhisperProcessor."""

    name = "whisper"
    model_types: tuple[str, ...] = ("whisper",)
    foreign_fields: tuple[str, ...] = CTC_FIELDS

    def context_s(self, model: ModelPart) -> float:
        """See `Family`; of a new one what it is made for."""
        return float(model.max_context_s or FULL_CONTEXT_S)

    def keeps_saved_processor(self, model: ModelPart) -> bool:
        """See `Family`."""
        return False

    def learns_processor(self, model: ModelPart) -> bool:
        """See `Family`."""
        return model.init == "scratch"

    def new_processor(self, texts: Sequence[str], model: ModelPart) -> WhisperProcessor:
        """See `Family`."""
        return new_processor(texts, model)

    def write_description(self, folder: Path, texts: Sequence[str], model: ModelPart) -> None:
        """See `Family`."""
        processor = self.new_processor(texts, model)
        processor.save_pretrained(folder)
        new_config(model, processor.tokenizer).save_pretrained(folder)
        new_generation_config(model, processor.tokenizer).save_pretrained(folder)

    def adopt_description(self, source: Path, folder: Path, model: ModelPart) -> None:
        """See `Family`."""
        config, processor = WhisperConfig.from_pretrained(source), WhisperProcessor.from_pretrained(source)
        scratch = model.init == "scratch"
        _refuse_other_sizes(config, new_config(model, processor.tokenizer) if scratch else _read_config(model))
        generation = GenerationConfig.from_pretrained(source)
        language = language_of(generation, model)
        settle_generation(generation, processor.tokenizer, language)
        if language is not None:
            _set_prefix(processor.tokenizer, language, "the checkpoint")
        config.update(regularization(model))
        processor.save_pretrained(folder)
        config.save_pretrained(folder)
        generation.save_pretrained(folder)

    def open_processor(self, model: ModelPart, description: Path | None) -> WhisperProcessor:
        """See `Family`; the tokenizer's prefix is the language and task of the config."""
        if description is not None:
            return WhisperProcessor.from_pretrained(description)
        language = language_of(read_generation_config(model), model)
        name, revision = str(model.name_or_path), model.revision or "main"
        processor = open_pretrained(model, lambda: WhisperProcessor.from_pretrained(name, revision=revision))
        if language is not None:
            _set_prefix(processor.tokenizer, language, str(model.name_or_path))
        return processor

    def limits(self, model: ModelPart, processor: Any) -> Limits:
        """See `Family`."""
        if model.init == "scratch":
            return self.limits_of(processor, model.max_label_tokens)
        return self.limits_of(processor, int(_read_config(model).max_target_positions))

    def limits_of(self, processor: Any, max_target_positions: int) -> Limits:
        """The limits of a processor's context and a decoder's positions."""
        # The end token, which is generated, is the last of an empty label.
        prefix = len(self.encode_labels(processor, [""])[0]) - 1
        context_s = float(processor.feature_extractor.chunk_length)
        return Limits(context_s, max_target_positions, prefix, max(1, max_target_positions - PROMPT_TOKENS))

    def encode_labels(self, processor: Any, texts: Sequence[str]) -> list[list[int]]:
        """Label ids of each text: language, task and no-timestamps tokens, the text, the end token.

        The decoder's start token is not among them, since the model puts it before the labels itself
        (transformers#29973: left in place, it is trained twice).
        """
        tokenizer = processor.tokenizer
        start = tokenizer.convert_tokens_to_ids(START)
        # What calling the tokenizer does, three times as fast: it would also list masks and places in the text.
        backend = tokenizer.backend_tokenizer
        backend.no_truncation()
        backend.no_padding()
        encoded = (item.ids for item in backend.encode_batch_fast(list(texts), add_special_tokens=True))
        return [ids[1:] if ids and ids[0] == start else ids for ids in encoded]

    def check_texts(self, processor: Any, texts: Iterable[str]) -> str | None:
        """See `Family`: its tokens write any text."""
        return None

    def labels_fingerprint(self, processor: Any) -> str:
        """See `Family`: the tokenizer with its prefix, without what a call to it leaves behind."""
        tokenizer = json.loads(processor.tokenizer.backend_tokenizer.to_str())
        tokenizer |= {"truncation": None, "padding": None}
        content = json.dumps([LABELS_VERSION, version("tokenizers"), tokenizer], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    def language_code(self, language: str) -> str:
        """See `Family`."""
        return language_code(language)

    def load_recognizer(
        self, model: ModelPart, description: Path | None, seed: int, *, weights: Path | None = None
    ) -> Recognizer:
        """See `Family`."""
        # Only now: it takes torch.
        from trainers.models.whisper.whisper_recognizer import load  # noqa: PLC0415

        return load(model, description, self.open_processor(model, description), seed, weights)

    def write_for_all_readers(self, folder: Path) -> set[str]:
        """See `Family`."""
        return write_processor(folder)

    def open_exported(self, folder: Path) -> Recognizer:
        """See `Family`."""
        from trainers.models.whisper.whisper_recognizer import open_exported  # noqa: PLC0415

        return open_exported(folder)


def regularization(model: ModelPart) -> dict[str, Any]:
    """What the config changes of a model's own config: dropout where it is given, and SpecAugment."""
    changes = {name: value for name in DROPOUTS if (value := getattr(model, name)) is not None}
    changes["apply_spec_augment"] = model.apply_spec_augment
    if model.apply_spec_augment:
        names = ("mask_time_prob", "mask_time_length", "mask_feature_prob", "mask_feature_length")
        changes |= {name: value for name in names if (value := getattr(model, name)) is not None}
    return changes


def _read_config(model: ModelPart) -> WhisperConfig:
    name, revision = str(model.name_or_path), model.revision or "main"
    return open_pretrained(model, lambda: WhisperConfig.from_pretrained(name, revision=revision))


def _refuse_other_sizes(found: WhisperConfig, wanted: WhisperConfig) -> None:
    sizes = {name: (getattr(found, name), getattr(wanted, name)) for name in SIZES}
    other = ", ".join(f"{name} {size}, not {asked}" for name, (size, asked) in sizes.items() if size != asked)
    if other:
        raise ConfigError(
            f"run.resume: the checkpoint's model has other sizes than the config's: {other}: "
            "set model to what the checkpoint was trained with"
        )


def _set_prefix(tokenizer: Any, language: tuple[str, str], origin: str) -> None:
    code, task = language
    tokenizer.set_prefix_tokens(language=LANGUAGES[code], task=task)
    prefix = tokenizer.convert_ids_to_tokens(tokenizer.prefix_tokens)
    if f"<|{code}|>" not in prefix:
        raise ConfigError(f"model.language: {origin} has no token <|{code}|>; its prefix is {prefix}")
