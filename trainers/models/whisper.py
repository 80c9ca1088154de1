"""The Whisper family as Rayscribe trains it: the model, padded labels, loss, and input of any even length."""

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
from trainers.models.processor import cannot_open, load_processor
from trainers.models.whisper_scratch import LANGUAGES, language_code

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
        raise cannot_open(model, error) from error
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
