"""The Whisper family: its processor, language and task tokens, labels and limits."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterator, Sequence
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

import transformers
from transformers import AutoTokenizer, GenerationConfig, WhisperConfig, WhisperProcessor
from transformers.utils import GENERATION_CONFIG_NAME

from trainers.config.schema import TrainConfig
from trainers.errors import ConfigError
from trainers.findings import Finding, ok, problem, warning
from trainers.models.adaptation.network_parts import Parts, encoder_decoder_parts
from trainers.models.family import Family, OpenModel
from trainers.models.label_codec import Limits
from trainers.models.language_names import LANGUAGES, no_token, whisper_code
from trainers.models.pretrained import from_pretrained, refuse_without_processor
from trainers.models.tokenizer_processor import refuse_tokens_beyond, split_processor
from trainers.models.whisper.whisper_generation import PROMPT_TOKENS, is_multilingual, language_of, resolve_generation
from trainers.models.whisper.whisper_part import CONTEXT_S, WhisperPart, language_code
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


# Tokenizer and generation config must agree on these, and often do not in published weights.
def check_tokens(opened: OpenModel) -> Iterator[Finding]:
    """Checks the special tokens at the beginning of every label."""
    part: WhisperPart = opened.part
    wanted = [START, NO_TIMESTAMPS]
    if part.token_language is not None and (
        part.init == "scratch" or is_multilingual(from_pretrained(part, GenerationConfig))
    ):
        wanted += [f"<|{language_code(part.token_language)}|>", f"<|{part.task}|>"]
    vocabulary = opened.processor.tokenizer.get_vocab()
    missing = [token for token in wanted if token not in vocabulary]
    if missing:
        yield problem(
            f"the tokenizer of {part.name_or_path or 'the new model'} has no token {', '.join(missing)}: take a model "
            f"that knows model.language {part.language} and model.task {part.task}, or name a language that it knows"
        )
    else:
        yield ok(f"the tokenizer has {' '.join(wanted)}")


def check_start_token(opened: OpenModel) -> Iterator[Finding]:
    """Compares the decoder's start token in training, in generation and in the tokenizer."""
    part: WhisperPart = opened.part
    if part.init == "scratch":
        yield ok("a new model starts with the tokenizer's own token")
        return
    start = opened.processor.tokenizer.convert_tokens_to_ids(START)
    wrong = {
        file: found
        for file, content in _configs(part).items()
        if (found := getattr(content, "decoder_start_token_id", None)) != start
    }
    for file, found in wrong.items():
        yield problem(
            f"{part.name_or_path}: decoder_start_token_id is {found} in {file}, but the tokenizer's {START} is "
            f"{start}: write {start} there, or the model is trained from one token and generates from another"
        )
    if not wrong:
        yield ok(f"decoder_start_token_id is {start}, the tokenizer's {START}")


def check_generation(opened: OpenModel) -> Iterator[Finding]:
    """Checks what generation needs for the language and task of the config, and reports ignored settings."""
    part: WhisperPart = opened.part
    if part.init == "scratch":
        yield ok("a new model's generation config is made of the recipe")
        return
    configs = _configs(part)
    generation = copy.deepcopy(configs["generation_config.json"])
    notes = resolve_generation(generation, opened.processor.tokenizer, language_of(generation, part))
    yield from (warning(f"{part.name_or_path}: {note}") for note in notes)
    for file, content in configs.items():
        if ids := getattr(content, "forced_decoder_ids", None):
            # Present in every released model.
            yield ok(f"{file} has outdated forced_decoder_ids {ids}, which are ignored: model.language and task count")
    if getattr(configs["config.json"], "suppress_tokens", None) == []:
        yield warning(
            f"{part.name_or_path}: config.json has suppress_tokens [], which is ignored and goes into the exported "
            "model: remove it there (transformers#36341)"
        )
    if not notes:
        yield ok("the generation config knows language, task and timestamps")


@lru_cache(maxsize=1)
def _configs(part: WhisperPart) -> dict[str, Any]:
    files = {"config.json": WhisperConfig, "generation_config.json": GenerationConfig}
    return {file: from_pretrained(part, kind) for file, kind in files.items()}


class WhisperFamily(Family[WhisperPart]):
    """Whisper's released models and new ones; their processor is a WhisperProcessor."""

    name = "whisper"
    model_types: tuple[str, ...] = ("whisper",)

    context_s = float(CONTEXT_S)
    recognizer: ClassVar[str] = f"{__package__}.whisper_recognizer:WhisperRecognizer"
    checks = (check_tokens, check_start_token, check_generation)
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
        language = language_of(from_pretrained(model, GenerationConfig), model)
        processor: WhisperProcessor = from_pretrained(model, WhisperProcessor)
        _refuse_other_tokenizer(processor.tokenizer, str(model.name_or_path))
        if language is not None:
            _set_prefix(processor.tokenizer, language, str(model.name_or_path))
        used = self.encode_labels(processor, [""])[0]
        # No text contains the tokens of timestamps and tasks.
        outputs = _read_config(model).vocab_size
        origin = f"model.name_or_path: {model.name_or_path}"
        refuse_tokens_beyond(processor.tokenizer, outputs, used, origin, ignored="<|")
        return processor

    def model_config(self, model: WhisperPart, processor: Any) -> Any:
        if model.init == "scratch" and processor is not None:
            return new_config(model, processor.tokenizer)
        return super().model_config(model, processor)

    def limits(self, config: Any, processor: Any) -> Limits:
        """Returns the limits; at least the end token of a label is generated."""
        prefix_tokens = len(self.encode_labels(processor, [""])[0]) - 1
        context_s, positions = float(processor.feature_extractor.chunk_length), int(config.max_target_positions)
        return Limits(context_s, positions, prefix_tokens, new_tokens=max(1, positions - PROMPT_TOKENS))

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
        # Same result as calling the tokenizer, three times as fast: a call also computes masks and offsets.
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

    def language_code(self, language: str) -> str:
        return language_code(language)

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


def _read_config(model: WhisperPart) -> Any:
    return from_pretrained(model, WhisperConfig)


def _refuse_other_tokenizer(tokenizer: Any, origin: str) -> None:
    """Raises ConfigError for a tokenizer without the tokens around each text, which are also in separate files."""
    known = tokenizer.get_vocab()
    if lacked := [token for token in (START, NO_TIMESTAMPS) if token not in known]:
        raise ConfigError(
            f"model.name_or_path: {origin}: its tokenizer has no {' and no '.join(lacked)}: copy the complete folder "
            "(tokenizer.json; or vocab.json with merges.txt, added_tokens.json and tokenizer_config.json), or name a "
            "Whisper's tokenizer (model.tokenizer_name)"
        )


def _set_prefix(tokenizer: Any, language: tuple[str, str], origin: str) -> None:
    code, task = language
    tokenizer.set_prefix_tokens(language=LANGUAGES[code], task=task)
    prefix = tokenizer.convert_ids_to_tokens(tokenizer.prefix_tokens)
    if f"<|{code}|>" not in tokenizer.get_vocab():
        fix = "name weights that have one, or say in model.borrowed_language whose token it shall be given"
        raise ConfigError(f"model.language: {_lacks(code, origin)}: {fix}")
    # transformers computes a language's token from the position of the first one.
    if f"<|{code}|>" not in prefix:
        raise ConfigError(f"model.language: {origin} does not have <|{code}|> in its place; its prefix is {prefix}")


def _lacks(code: str, origin: str) -> str:
    return f"{origin} has no token <|{code}|> of {LANGUAGES[code].title()}"
