"""A Whisper model as Rayscribe trains and scores it: padded labels, loss, and input of any even length."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import (
    GenerationConfig,
    SuppressTokensLogitsProcessor,
    WhisperConfig,
    WhisperForConditionalGeneration,
    WhisperProcessor,
    set_seed,
)

from trainers.config.schema import ModelPart
from trainers.data.features import LogMel
from trainers.models.family import Limits, cannot_open
from trainers.models.recognizer import IGNORED_LABEL, Decoding, LabelCollator, Recognizer
from trainers.models.whisper_family import WhisperFamily, limits_of, regularization
from trainers.models.whisper_generation import allowing_text, language_of, settle_generation


class WhisperRecognizer(Recognizer):
    """WhisperForConditionalGeneration and WhisperProcessor."""

    @property
    def limits(self) -> Limits:
        """See `Recognizer`."""
        return limits_of(self.processor, int(self.model.config.max_target_positions))

    @property
    def family(self) -> WhisperFamily:
        """See `Recognizer`."""
        return WhisperFamily()

    def new_features(self) -> LogMel:
        """See `Recognizer`."""
        return LogMel(self.processor.feature_extractor)

    @property
    def collate_labels(self) -> LabelCollator:
        """See `Recognizer`."""
        config = self.model.config
        return partial(pad_labels, start_id=config.decoder_start_token_id, pad_id=config.pad_token_id)

    @contextmanager
    def input_frames(self, frames: int) -> Iterator[None]:
        """See `Recognizer`; generation follows.

        The encoder asks its config for the length and its position table for the number of rows; both are told for
        the moment, and no weight is touched, so that nothing of it can be saved.
        """
        config, positions = self.model.config, self.model.get_encoder().embed_positions
        whole = config.max_source_positions
        config.max_source_positions = positions.num_embeddings = frames // 2
        try:
            yield
        finally:
            config.max_source_positions = positions.num_embeddings = whole

    def loss(
        self, outputs: Any, labels: torch.Tensor, count: torch.Tensor | int | None, smoothing: float = 0.0
    ) -> torch.Tensor:
        """See `Recognizer`: cross-entropy."""
        return label_loss(outputs.logits, labels, count, smoothing)

    @torch.no_grad()
    def recognize(
        self, features: torch.Tensor, labels: Sequence[Sequence[int]], decoding: Decoding
    ) -> list[tuple[str, float]]:
        """See `Recognizer`."""
        model = self.model
        precision = (
            torch.autocast(model.device.type, decoding.autocast) if decoding.autocast is not None else nullcontext()
        )
        text = (
            allowing_text(model.generation_config, self.processor.tokenizer) if decoding.as_written else nullcontext()
        )
        with self.input_frames(features.shape[-1]), precision, text:
            # Once, for the loss and for the hypothesis: the encoder is most of the work.
            encoded = model.get_encoder()(features)
            losses = self._losses(encoded, labels)
            tokens = model.generate(
                encoder_outputs=encoded,
                max_new_tokens=max(1, min(decoding.max_length, self.limits.new_tokens)),
                num_beams=decoding.num_beams,
                do_sample=False,
                logits_processor=[self._no_timestamps()],
            )
        hypotheses = self.processor.tokenizer.batch_decode(tokens, skip_special_tokens=True)
        return [(hypothesis.strip(), loss) for hypothesis, loss in zip(hypotheses, losses, strict=True)]

    def _losses(self, encoded: Any, labels: Sequence[Sequence[int]]) -> list[float]:
        inputs = {name: value.to(self.model.device) for name, value in self.collate_labels(labels).items()}
        targets = inputs.pop("labels")
        logits = self.model(encoder_outputs=encoded, **inputs).logits
        return [float(label_loss(row[None], target[None], 1)) for row, target in zip(logits, targets, strict=True)]

    def _no_timestamps(self) -> SuppressTokensLogitsProcessor:
        """Forbids timestamps, which are not wanted: after one, generation would go back to the audio."""
        first = self.model.generation_config.no_timestamps_token_id + 1
        return SuppressTokensLogitsProcessor(list(range(first, self.model.config.vocab_size)), device=self.model.device)


def load(
    model: ModelPart, description: Path | None, processor: Any, seed: int, weights: Path | None
) -> WhisperRecognizer:
    """See `Family.load_recognizer`."""
    if description is not None:
        set_seed(seed)
        config = WhisperConfig.from_pretrained(description)
        network = WhisperForConditionalGeneration(config)
        if weights is not None:
            # Into a new network: from_pretrained forgets that the encoder's positions are not trained.
            loaded = WhisperForConditionalGeneration.from_pretrained(weights, config=config, dtype=torch.float32)
            network.load_state_dict(loaded.state_dict())
        network.generation_config = GenerationConfig.from_pretrained(description)
        return WhisperRecognizer(network, processor)
    try:
        network = WhisperForConditionalGeneration.from_pretrained(
            str(model.name_or_path), revision=model.revision or "main", dtype=torch.float32, **regularization(model)
        )
    except (OSError, ValueError) as error:
        raise cannot_open(model, error) from error
    generation = network.generation_config
    notes = settle_generation(generation, processor.tokenizer, language_of(generation, model))
    # Where outdated ones were, they would rule over the language.
    if hasattr(network.config, "forced_decoder_ids"):
        network.config.forced_decoder_ids = None
    return WhisperRecognizer(network, processor, tuple(notes))


def open_exported(folder: Path) -> WhisperRecognizer:
    """See `Family.open_exported`."""
    network = WhisperForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
    return WhisperRecognizer(network, WhisperProcessor.from_pretrained(folder))


def pad_labels(labels: Sequence[Sequence[int]], *, start_id: int, pad_id: int) -> dict[str, torch.Tensor]:
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
    return {"labels": padded, "decoder_input_ids": inputs.masked_fill(inputs == IGNORED_LABEL, pad_id)}


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
