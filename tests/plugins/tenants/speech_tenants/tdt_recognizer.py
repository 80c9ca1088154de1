"""A Parakeet TDT as it is trained and scored."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from rayscribe.trainers.data.features import LENGTHS, ExtractorFeatures
from rayscribe.trainers.models.recognizer import (
    IGNORED_LABEL,
    Decoding,
    LabelCollator,
    Recognition,
    Recognizer,
    Target,
    padded,
)
from transformers import LogitsProcessor
from transformers.loss.loss_tdt import tdt_loss

LAYER_VALUES, LOGIT_VALUES = 34, 3


class TdtRecognizer(Recognizer):
    """ParakeetForTDT and its ParakeetProcessor."""

    def new_features(self) -> ExtractorFeatures:
        return ExtractorFeatures(self.processor.feature_extractor, masked=True)

    @property
    def collate_labels(self) -> LabelCollator:
        return partial(collate, blank_id=self.model.config.blank_token_id)

    def cost(self, padded_s: float, label_tokens: Any) -> Any:
        """Next to the encoder's activations there are U + 1 rows of logits for each of its frames.

        A layer keeps about 34 values of each hidden unit (17 of a transformer's, Korthikanti et al. 2022, eq. 2; a
        conformer has twice the parts); of each logit, there are its log-probability and the loss's gradient of it, too.
        """
        encoder, sizes = self.model.config.encoder_config, self.model.config
        of_encoder = LAYER_VALUES * encoder.num_hidden_layers * encoder.hidden_size
        of_logits = LOGIT_VALUES * (sizes.vocab_size + len(sizes.durations))
        return padded_s * (1 + (label_tokens + 1) * of_logits / of_encoder)

    def counted_labels(self, labels: torch.Tensor) -> torch.Tensor:
        """Utterances: the loss is a mean over those of the mean over each one's labels."""
        return labels[:, :1]

    def loss(self, outputs: Any, target: Target, count: torch.Tensor | int | None) -> torch.Tensor:
        assert target.lengths is not None
        sizes = target.labels.ne(IGNORED_LABEL).sum(dim=-1)
        losses = self._losses(outputs.logits, target.labels, target.lengths) / sizes.clamp(min=1)
        # A filler has no labels.
        return losses.masked_fill(sizes == 0, 0.0).sum() / (sizes.ne(0).sum() if count is None else count)

    @torch.no_grad()
    def recognize(
        self, inputs: Mapping[str, torch.Tensor], labels: Sequence[Sequence[int]], decoding: Decoding
    ) -> list[Recognition]:
        given = dict(inputs)
        lengths = given.pop(LENGTHS)
        collated = {name: value.to(self.model.device) for name, value in self.collate_labels(labels, ()).items()}
        targets = collated.pop("labels")
        tokens = GreedyTokens(self.model.config.vocab_size)
        with decoding.precision(self.model.device):
            losses = self._losses(self.model(**given, **collated).logits, targets, lengths)
            found = self.model.generate(**given, logits_processor=[tokens], max_new_tokens=decoding.part.max_length)
        # transformers goes on with clips that have ended until the longest of the batch has.
        starts = found.durations.cumsum(dim=-1) - found.durations
        beyond = starts >= self.model._get_subsampling_output_length(lengths)[:, None]
        sequences = found.sequences.masked_fill(beyond, self.model.config.pad_token_id)
        texts = self.processor.batch_decode(sequences, skip_special_tokens=True)
        logprobs, sizes = torch.stack(tokens.logprobs, dim=1), (~beyond[:, 1:]).sum(dim=-1)
        means = logprobs.masked_fill(beyond[:, 1:], 0.0).sum(dim=-1) / sizes
        rows = zip(texts, losses.tolist(), means.tolist(), strict=True)
        return [Recognition(text.strip(), loss, mean) for text, loss, mean in rows]

    def _losses(self, logits: torch.Tensor, labels: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Of each utterance, nats, (B,)."""
        config = self.model.config
        tokens, durations = logits[..., : config.vocab_size], logits[..., config.vocab_size :]
        frames = self.model._get_subsampling_output_length(lengths)
        sizes = labels.ne(IGNORED_LABEL).sum(dim=-1)
        given = (tokens, durations, labels.clamp(min=0).int(), frames.int(), sizes.int())
        losses: torch.Tensor = tdt_loss(*given, config.blank_token_id, config.durations, reduction="none")
        return losses


class GreedyTokens(LogitsProcessor):
    """Keeps the likeliest token of each step from being one of the durations, which stand behind them.

    Attributes:
        logprobs: ln p of each step's token, (B,).
    """

    def __init__(self, vocab_size: int):
        self._vocab_size = vocab_size
        self.logprobs: list[torch.Tensor] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.logprobs.append(scores[:, : self._vocab_size].float().log_softmax(dim=-1).amax(dim=-1))
        masked = scores.clone()
        masked[:, self._vocab_size :] = -torch.inf
        return masked


def collate(labels: Sequence[Sequence[int]], samples: Sequence[int], *, blank_id: int) -> dict[str, torch.Tensor]:
    """int64 labels (B, L), -100 behind each, and decoder_input_ids (B, L + 1): a blank and the labels."""
    # One row more is one wide.
    targets = padded([*labels, [IGNORED_LABEL]])[:-1]
    inputs = torch.nn.functional.pad(targets, (1, 0), value=blank_id)
    return {"labels": targets, "decoder_input_ids": inputs.masked_fill(inputs == IGNORED_LABEL, blank_id)}
