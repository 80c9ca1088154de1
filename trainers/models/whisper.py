"""The Whisper family as Rayscribe trains it: model and processor, labels, loss, and input of any even length."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import (
    GenerationConfig,
    WhisperConfig,
    WhisperForConditionalGeneration,
    WhisperProcessor,
    set_seed,
)

from trainers.config.schema import ModelPart
from trainers.errors import ConfigError, DataError
from trainers.models.whisper_scratch import (
    LANGUAGES,
    START,
    language_code,
    new_config,
    new_generation_config,
    new_processor,
)

IGNORED_LABEL = -100


@dataclass(frozen=True)
class Recognizer:
    """A model with what stands before and behind it.

    Attributes:
        model: WhisperForConditionalGeneration.
        processor: WhisperProcessor; its tokenizer's prefix is the language and task of the config.
    """

    model: Any
    processor: Any

    @property
    def context_s(self) -> float:
        """Seconds of the longest input."""
        return float(self.processor.feature_extractor.chunk_length)


def write_scratch_description(folder: Path, texts: Sequence[str], model: ModelPart) -> None:
    """Writes config and processor of a new model, everything but weights, so that all ranks build the same one."""
    processor = new_processor(texts, model)
    processor.save_pretrained(folder)
    new_config(model, processor.tokenizer).save_pretrained(folder)
    new_generation_config(model, processor.tokenizer).save_pretrained(folder)


def load_processor(model: ModelPart, description: Path | None) -> WhisperProcessor:
    """The processor, from a scratch description, or from where the pretrained weights are.

    Raises:
        ConfigError: it cannot be opened, or has no token for the language.
    """
    if description is not None:
        return WhisperProcessor.from_pretrained(description)
    multilingual = is_multilingual(model)
    if not multilingual and model.language is not None and language_code(model.language) != "en":
        raise ConfigError(
            f"model.language is {model.language}, but {model.name_or_path} knows only English: "
            "take the multilingual weights, or set model.language: null"
        )
    if multilingual and model.language is None:
        raise ConfigError(
            f"model.language is missing: {model.name_or_path} is multilingual (--set model.language=English)"
        )
    try:
        processor = WhisperProcessor.from_pretrained(str(model.name_or_path), revision=model.revision or "main")
    except (OSError, ValueError) as error:
        raise _cannot_open(model, error) from error
    if multilingual and model.language is not None:
        language = LANGUAGES[language_code(model.language)]
        processor.tokenizer.set_prefix_tokens(language=language, task=model.task)
        token = f"<|{language_code(model.language)}|>"
        prefix = processor.tokenizer.convert_ids_to_tokens(processor.tokenizer.prefix_tokens)
        if token not in prefix:
            raise ConfigError(f"model.language: {model.name_or_path} has no token {token}; its prefix is {prefix}")
    return processor


def is_multilingual(model: ModelPart) -> bool:
    """Whether the pretrained weights know languages, by their generation config."""
    try:
        generation = GenerationConfig.from_pretrained(str(model.name_or_path), revision=model.revision or "main")
    except (OSError, ValueError) as error:
        raise _cannot_open(model, error) from error
    return bool(getattr(generation, "is_multilingual", True))


def load_recognizer(model: ModelPart, description: Path | None, seed: int) -> Recognizer:
    """Builds the model on this process, the same on every rank.

    Args:
        model: The config's model part.
        description: Folder of `write_scratch_description`, or None for pretrained weights.
        seed: Seed of new weights.

    Raises:
        ConfigError: the weights cannot be opened.
    """
    processor = load_processor(model, description)
    if description is not None:
        set_seed(seed)
        network = WhisperForConditionalGeneration(WhisperConfig.from_pretrained(description))
        network.generation_config = GenerationConfig.from_pretrained(description)
        return Recognizer(network, processor)
    overridable = ("dropout", "attention_dropout", "activation_dropout")
    regularisation = {name: value for name in overridable if (value := getattr(model, name)) is not None}
    regularisation["apply_spec_augment"] = model.apply_spec_augment
    if model.apply_spec_augment:
        masks = ("mask_time_prob", "mask_feature_prob")
        regularisation |= {name: getattr(model, name) for name in masks}
    try:
        network = WhisperForConditionalGeneration.from_pretrained(
            str(model.name_or_path), revision=model.revision or "main", dtype=torch.float32, **regularisation
        )
    except (OSError, ValueError) as error:
        raise _cannot_open(model, error) from error
    set_language(network, model)
    return Recognizer(network, processor)


def set_language(network: Any, model: ModelPart) -> None:
    """Makes the model transcribe the config's language and task by itself, and forget outdated ways to say so."""
    generation = network.generation_config
    generation.forced_decoder_ids = None
    if hasattr(network.config, "forced_decoder_ids"):
        network.config.forced_decoder_ids = None
    if model.language is not None and getattr(generation, "is_multilingual", True):
        generation.language = LANGUAGES[language_code(model.language)]
        generation.task = model.task


def open_exported(folder: Path) -> Recognizer:
    """Opens a folder with model and processor, as written by an export or a checkpoint."""
    network = WhisperForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
    return Recognizer(network, WhisperProcessor.from_pretrained(folder))


def encode_labels(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    """Label ids of each text: language, task and no-timestamps tokens, the text, the end token.

    The decoder's start token is not among them, since the model puts it before the labels itself
    (transformers#29973: left in place, it is trained twice).
    """
    start = tokenizer.convert_tokens_to_ids(START)
    encoded = tokenizer(list(texts), add_special_tokens=True, verbose=False)["input_ids"] if texts else []
    return [ids[1:] if ids and ids[0] == start else ids for ids in encoded]


def check_label_lengths(lengths: Sequence[int], ids: Sequence[str], most: int, split: str) -> None:
    """Refuses transcripts that the decoder cannot hold; on a GPU they would end the process in mid-training.

    Raises:
        DataError: names the ids and their lengths.
    """
    long = [(name, length) for name, length in zip(ids, lengths, strict=True) if length > most]
    if long:
        shown = ", ".join(f"{name} ({length})" for name, length in long[:5])
        raise DataError(
            f"{split}: {len(long)} transcripts have more label tokens than the model's {most}: {shown}"
            f"{', …' if len(long) > 5 else ''}; shorten or split these utterances"
        )


def pad_labels(labels: Sequence[Sequence[int]], *, start_id: int, pad_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Pads labels by their lengths (never by token id: Whisper's padding token is its end token).

    Args:
        labels: Label ids of each utterance; -100 among them is kept.
        start_id: The decoder's start token.
        pad_id: The padding token.

    Returns:
        int64 labels (B, L), -100 behind each, and int64 decoder_input_ids (B, L): labels moved right by one.
    """
    width = max(len(row) for row in labels)
    padded = torch.full((len(labels), width), IGNORED_LABEL, dtype=torch.int64)
    for target, row in zip(padded, labels, strict=True):
        target[: len(row)] = torch.tensor(row, dtype=torch.int64)
    inputs = torch.cat([torch.full((len(labels), 1), start_id, dtype=torch.int64), padded[:, :-1]], dim=1)
    return padded, inputs.masked_fill(inputs == IGNORED_LABEL, pad_id)


def label_loss(
    logits: torch.Tensor, labels: torch.Tensor, count: torch.Tensor | int | None, smoothing: float = 0.0
) -> torch.Tensor:
    """Cross-entropy summed over labels, divided by the number of labels of the whole global batch.

    Args:
        logits: (B, L, V).
        labels: (B, L), -100 is ignored.
        count: Labels of the global batch, over all ranks and forward passes. None: those of this batch.
        smoothing: Label smoothing, 0 for none.
    """
    total = torch.nn.functional.cross_entropy(
        logits.float().flatten(0, 1),
        labels.flatten(),
        ignore_index=IGNORED_LABEL,
        reduction="sum",
        label_smoothing=smoothing,
    )
    return total / (labels.ne(IGNORED_LABEL).sum() if count is None else count)


@contextmanager
def input_frames(network: Any, frames: int) -> Iterator[None]:
    """Within it, the model takes inputs of exactly `frames` frames, and generation follows.

    The encoder asks its config for the length and its position table for the number of rows; both are told for the
    moment, and no weight is touched, so that nothing of it can be saved.
    """
    positions = network.get_encoder().embed_positions
    whole = network.config.max_source_positions
    network.config.max_source_positions = positions.num_embeddings = frames // 2
    try:
        yield
    finally:
        network.config.max_source_positions = positions.num_embeddings = whole


def _cannot_open(model: ModelPart, error: Exception) -> ConfigError:
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return ConfigError(
        f"model.name_or_path: {model.name_or_path} cannot be opened: {reason}; give a folder with a Whisper model, "
        "or a Hub id that this machine can reach"
    )
