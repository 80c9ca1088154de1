"""Defines the Whisper family: its processor, language and task tokens, labels and limits."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

import transformers
from transformers import AutoTokenizer, GenerationConfig, WhisperConfig, WhisperProcessor
from transformers.utils import GENERATION_CONFIG_NAME

from trainers.config.schema import TrainConfig
from trainers.errors import ConfigError
from trainers.models.adaptation.network_parts import Parts, encoder_decoder_parts
from trainers.models.family import Family
from trainers.models.label_codec import Limits
from trainers.models.language_names import LANGUAGES, no_token, whisper_code
from trainers.models.pretrained import from_pretrained, refuse_without_processor
from trainers.models.tokenizer_processor import refuse_tokens_beyond, split_processor
from trainers.models.whisper.whisper_generation import PROMPT_TOKENS, language_of, resolve_generation
from trainers.models.whisper.whisper_part import CONTEXT_S, WhisperPart
from trainers.models.whisper.whisper_scratch import (
    NO_TIMESTAMPS,
    START,
    new_config,
    new_generation_config,
    new_processor,
    regularization,
)

# Increased when `encode_labels` returns other ids for the same tokenizer, so that stored labels are not reused.
LABELS_VERSION = 1


def _configs(part: WhisperPart) -> dict[str, Any]:
    files = {"config.json": WhisperConfig, "generation_config.json": GenerationConfig}
    return {file: from_pretrained(part, kind) for file, kind in files.items()}


class WhisperFamily(Family[WhisperPart]):
    """Whisper's released models and new ones; their processor is a WhisperProcessor."""

    name = "whisper"
    model_types: tuple[str, ...] = ("whisper",)

    context_s = float(CONTEXT_S)
    has_timestamps: ClassVar[bool] = True
    recognizer: ClassVar[str] = f"{__package__}.whisper_recognizer:WhisperRecognizer"
    sizes: ClassVar[Sequence[str] | None] = (
        *("d_model", "encoder_layers", "encoder_attention_heads", "encoder_ffn_dim"),
        *("decoder_layers", "decoder_attention_heads", "decoder_ffn_dim"),
        *("num_mel_bins", "max_source_positions", "max_target_positions", "vocab_size"),
    )

    def auto_class(self, config: Any) -> Any:
        return transformers.AutoModelForSpeechSeq2Seq

    def parts(self, network: Any) -> Parts:
        return encoder_decoder_parts(network)

    def new_processor(self, texts: Sequence[str], model: WhisperPart) -> WhisperProcessor:
        return new_processor(texts, model)

    def write_description(self, folder: Path, texts: Sequence[str], model: WhisperPart) -> None:
        processor = self.new_processor(texts, model)
        processor.save_pretrained(folder)
        new_config(model, processor.tokenizer).save_pretrained(folder)
        new_generation_config(model, processor.tokenizer).save_pretrained(folder)

    def adopt_description(self, source: Path, folder: Path, model: WhisperPart) -> None:
        config, processor = self.open_checkpoint(source, model)
        generation = GenerationConfig.from_pretrained(source)
        language = language_of(generation, model)
        resolve_generation(generation, processor.tokenizer, language)
        if language is not None:
            _set_prefix(processor.tokenizer, language, "the checkpoint")
        config.update(regularization(model))
        processor.save_pretrained(folder)
        config.save_pretrained(folder)
        generation.save_pretrained(folder)

    def open_processor(self, model: WhisperPart, description: Path | None) -> WhisperProcessor:
        """Opens the processor, whose tokenizer has the config's language and task as prefix."""
        if description is not None:
            return WhisperProcessor.from_pretrained(description)
        refuse_without_processor(model)
        folder = Path(str(model.name_or_path))
        if folder.is_dir() and not (folder / GENERATION_CONFIG_NAME).is_file():
            raise ConfigError(
                f"model.name_or_path: {folder} holds no {GENERATION_CONFIG_NAME}, which says what a Whisper generates: "
                "copy the complete folder, or that file of the weights that these were made of, such as "
                "openai/whisper-small"
            )
        configs, origin = _configs(model), f"model.name_or_path: {model.name_or_path}"
        language = language_of(configs["generation_config.json"], model)
        processor: WhisperProcessor = from_pretrained(model, WhisperProcessor)
        _refuse_other_tokens(processor.tokenizer, configs, language, origin)
        if language is not None:
            _set_prefix(processor.tokenizer, language, str(model.name_or_path))
        used = self.encode_labels(processor, [""])[0]
        # No text contains the tokens of timestamps and tasks.
        outputs = configs["config.json"].vocab_size
        refuse_tokens_beyond(processor.tokenizer, outputs, used, origin, ignored="<|")
        return processor

    def model_config(self, model: WhisperPart, processor: Any) -> Any:
        if model.init == "scratch" and processor is not None:
            return new_config(model, processor.tokenizer)
        return super().model_config(model, processor)

    def limits(self, config: Any, processor: Any) -> Limits:
        """Returns the limits of a model; it can generate at least the end token of a label."""
        prefix_tokens = len(self.encode_labels(processor, [""])[0]) - 1
        context_s, positions = float(processor.feature_extractor.chunk_length), int(config.max_target_positions)
        return Limits(context_s, positions, prefix_tokens, new_tokens=max(1, positions - PROMPT_TOKENS))

    def notes(self, model: WhisperPart, processor: Any) -> list[str]:
        configs = _configs(model)
        generation = configs["generation_config.json"]
        found = resolve_generation(generation, processor.tokenizer, language_of(generation, model))
        if getattr(configs["config.json"], "suppress_tokens", None) == []:
            found.append(
                "config.json has suppress_tokens [], which is ignored and goes into the exported model: remove it "
                "there (transformers#36341)"
            )
        return found

    def misfits(self, config: TrainConfig, limits: Limits) -> list[str]:
        part, found = config.model, super().misfits(config, limits)
        short = part.max_context_s or limits.context_s
        if isinstance(part, WhisperPart) and part.full_context_matching and short >= limits.context_s:
            found.append(
                f"model.max_context_s {short} is not shorter than the model's own context of {limits.context_s:g} s, "
                "so that model.full_context_matching keeps nothing: lower it, or set model.full_context_matching: 0"
            )
        return found

    def encode_labels(self, processor: Any, texts: Sequence[str]) -> list[list[int]]:
        """Returns the label ids of each text: language, task and no-timestamps tokens, the text, the end token.

        The decoder's start token is not included, since the model adds it before the labels itself (transformers#29973:
        otherwise it is trained twice).
        """
        tokenizer = processor.tokenizer
        start = tokenizer.convert_tokens_to_ids(START)
        # Three times as fast as calling the tokenizer, which also computes masks and offsets, with the same result.
        backend = tokenizer.backend_tokenizer
        backend.no_truncation()
        backend.no_padding()
        encoded = (item.ids for item in backend.encode_batch_fast(list(texts), add_special_tokens=True))
        return [ids[1:] if ids and ids[0] == start else ids for ids in encoded]

    def labels_fingerprint(self, processor: Any) -> str:
        """Returns a hash of the tokenizer with its prefix, without the state that calls leave in it."""
        tokenizer = json.loads(processor.tokenizer.backend_tokenizer.to_str())
        tokenizer |= {"truncation": None, "padding": None}
        content = json.dumps([LABELS_VERSION, version("tokenizers"), tokenizer], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    def language_prefix(self, processor: Any, language: str | None) -> list[int]:
        """Returns the language, task and no-timestamps tokens; a new model has tokens for all languages of Whisper."""
        if language is None:
            return self.encode_labels(processor, [""])[0][:-1]
        code = whisper_code(language)
        if code is None:
            raise ConfigError(no_token(language))
        if processor is None:
            return []
        tokenizer, own = processor.tokenizer, self.language_prefix(processor, None)
        if tokenizer.convert_ids_to_tokens(own[0]).strip("<|>") not in LANGUAGES:
            if code != "en":
                raise ConfigError("the model knows only English")
            return own
        token: int | None = tokenizer.get_vocab().get(f"<|{code}|>")
        if token is None:
            raise ConfigError(_lacks(code, "the model"))
        return [token, *own[1:]]

    def export_processor(self, folder: Path) -> None:
        split_processor(folder)
        # transformers before version 5 reads neither merges as pairs, nor special tokens that only tokenizer.json marks
        # as such (tested with 4.44).
        tokenizer = AutoTokenizer.from_pretrained(folder)
        tokenizer.backend_tokenizer.model.save(str(folder))
        files = ("tokenizer.json", "tokenizer_config.json")
        saved, config = (json.loads((folder / name).read_bytes()) for name in files)
        saved["model"]["merges"] = [" ".join(pair) for pair in saved["model"]["merges"]]
        special = [token["content"] for token in saved["added_tokens"] if token["special"]]
        changed = {
            "added_tokens.json": tokenizer.get_added_vocab(),
            "tokenizer.json": saved,
            "tokenizer_config.json": {**config, "additional_special_tokens": special},
        }
        for name, content in changed.items():
            (folder / name).write_text(json.dumps(content, ensure_ascii=False, indent=2), encoding="utf-8")


def _refuse_other_tokens(
    tokenizer: Any, configs: Mapping[str, Any], language: tuple[str, str] | None, origin: str
) -> None:
    """Raises ConfigError if a tokenizer lacks a token around each text, or its start token is not the configs'."""
    known, task = tokenizer.get_vocab(), [f"<|{language[1]}|>"] if language is not None else []
    if lacked := [token for token in (START, NO_TIMESTAMPS, *task) if token not in known]:
        raise ConfigError(
            f"{origin}: its tokenizer has no {' and no '.join(lacked)}: copy the complete folder "
            "(tokenizer.json; or vocab.json with merges.txt, added_tokens.json and tokenizer_config.json), or name a "
            "Whisper's tokenizer (model.tokenizer_name)"
        )
    for file, content in configs.items():
        if (found := getattr(content, "decoder_start_token_id", None)) != known[START]:
            raise ConfigError(
                f"{origin}: decoder_start_token_id is {found} in {file}, but the tokenizer's {START} is "
                f"{known[START]}: write {known[START]} there, or training and generation start with different tokens"
            )


def _set_prefix(tokenizer: Any, language: tuple[str, str], origin: str) -> None:
    code, task = language
    tokenizer.set_prefix_tokens(language=LANGUAGES[code], task=task)
    prefix = tokenizer.convert_ids_to_tokens(tokenizer.prefix_tokens)
    if f"<|{code}|>" not in tokenizer.get_vocab():
        fix = "use weights that have one, or set model.borrowed_language to a language that has one"
        raise ConfigError(f"model.language: {_lacks(code, origin)}: {fix}")
    # transformers computes a language's token from the position of the first language.
    if f"<|{code}|>" not in prefix:
        raise ConfigError(f"model.language: {origin} does not have <|{code}|> in its place; its prefix is {prefix}")


def _lacks(code: str, origin: str) -> str:
    return f"{origin} has no token <|{code}|> of {LANGUAGES[code].title()}"
