"""A CTC model as Rayscribe trains and scores it: an exact loss of unpadded frames, and its best path."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCTC, set_seed

from trainers.config.parts.model_part import ModelPart
from trainers.data.extractor_features import ExtractorFeatures
from trainers.data.features import LENGTHS
from trainers.errors import ConfigError
from trainers.models.ctc.ctc_family import CtcFamily
from trainers.models.ctc.ctc_scratch import regularization
from trainers.models.family import Limits
from trainers.models.pretrained import attention, open_pretrained
from trainers.models.recognizer import IGNORED_LABEL, Decoding, LabelCollator, Recognition, Recognizer, Target


class CtcRecognizer(Recognizer):
    """A model of AutoModelForCTC and its processor."""

    @property
    def limits(self) -> Limits:
        """See `Recognizer`."""
        return self.family.limits_of(self.model.config)

    @property
    def family(self) -> CtcFamily:
        """See `Recognizer`."""
        return CtcFamily()

    def new_features(self) -> ExtractorFeatures:
        """See `Recognizer`."""
        return ExtractorFeatures(self.processor.feature_extractor, masked=not self.limits.sees_padding)

    @property
    def collate_labels(self) -> LabelCollator:
        """See `Recognizer`."""
        return pad_labels

    def counted(self, labels: torch.Tensor) -> torch.Tensor:
        """See `Recognizer`: utterances where each counts alike, else labels."""
        return labels[:, :1] if self.model.config.ctc_loss_reduction == "mean" else labels

    def loss(self, outputs: Any, target: Target, count: torch.Tensor | int | None) -> torch.Tensor:
        """See `Recognizer`: by `ctc_loss_reduction`, over the frames of each clip without its padding."""
        labels = target.labels
        losses = self._losses(outputs.logits, labels, target.lengths, zero_infinity=self.model.config.ctc_zero_infinity)
        sizes = labels.ne(IGNORED_LABEL).sum(dim=-1)
        if self.model.config.ctc_loss_reduction == "mean":
            losses = losses / sizes.clamp(min=1)
        # A filler's best path would be all blanks, and has a cost.
        total = losses.masked_fill(sizes == 0, 0.0).sum()
        return total / (self.counted(labels).ne(IGNORED_LABEL).sum() if count is None else count)

    @torch.no_grad()
    def recognize(
        self, inputs: Mapping[str, torch.Tensor], labels: Sequence[Sequence[int]], decoding: Decoding
    ) -> list[Recognition]:
        """See `Recognizer`.

        Raises:
            ConfigError: a beam search is asked for.
        """
        if decoding.num_beams > 1:
            raise ConfigError(
                f"training.generation_num_beams is {decoding.num_beams}, and a CTC model is decoded by its best path: "
                "set it to 1"
            )
        device, heard = self.model.device, self._frames(inputs[LENGTHS]) > 0
        if not bool(heard.all()):
            return self._among(inputs, labels, heard, decoding)
        given = dict(inputs)
        lengths = given.pop(LENGTHS)
        with decoding.precision(device):
            logits = self.model(**given).logits
        targets = pad_labels(labels)["labels"].to(device)
        losses = self._losses(logits, targets, lengths, zero_infinity=True).tolist()
        logprobs, path = logits.float().log_softmax(dim=-1).max(dim=-1)
        frames = self._frames(lengths).tolist()
        texts = [self.processor.tokenizer.decode(row[:size]) for row, size in zip(path.tolist(), frames, strict=True)]
        means = [float(row[:size].mean()) for row, size in zip(logprobs, frames, strict=True)]
        return [Recognition(text.strip(), loss, mean) for text, loss, mean in zip(texts, losses, means, strict=True)]

    def _among(
        self, inputs: Mapping[str, torch.Tensor], labels: Sequence[Sequence[int]], heard: torch.Tensor, how: Decoding
    ) -> list[Recognition]:
        """The same where clips are too short for one output: they have the empty hypothesis, and cost nothing."""
        rows = torch.nonzero(heard).flatten().tolist()
        found = [Recognition("", 0.0, 0.0)] * len(labels)
        if rows:
            part = {name: value[heard] for name, value in inputs.items()}
            for row, item in zip(rows, self.recognize(part, [labels[row] for row in rows], how), strict=True):
                found[row] = item
        return found

    def _frames(self, lengths: torch.Tensor | None) -> torch.Tensor:
        """Outputs of inputs of these lengths, int64 (B,)."""
        frames: torch.Tensor = self.model._get_feat_extract_output_lengths(lengths).to(torch.int64)
        return frames

    def _losses(
        self, logits: torch.Tensor, labels: torch.Tensor, lengths: torch.Tensor | None, *, zero_infinity: bool
    ) -> torch.Tensor:
        """The negative log-likelihood of each utterance's labels, nats, (B,)."""
        logprobs = logits.float().log_softmax(dim=-1).transpose(0, 1)
        mask = labels.ne(IGNORED_LABEL)
        # cuDNN's loss is not deterministic, and bounded in length.
        with torch.backends.cudnn.flags(enabled=False):
            return torch.nn.functional.ctc_loss(
                logprobs,
                labels.masked_select(mask),
                self._frames(lengths),
                mask.sum(dim=-1),
                blank=self.model.config.pad_token_id,
                reduction="none",
                zero_infinity=zero_infinity,
            )


def pad_labels(labels: Sequence[Sequence[int]]) -> dict[str, torch.Tensor]:
    """int64 labels (B, L), at least one wide, -100 behind each."""
    width = max(1, *(len(row) for row in labels))
    padded = torch.full((len(labels), width), IGNORED_LABEL, dtype=torch.int64)
    for target, row in zip(padded, labels, strict=True):
        target[: len(row)] = torch.tensor(row, dtype=torch.int64)
    return {"labels": padded}


def load(model: ModelPart, description: Path | None, processor: Any, seed: int, weights: Path | None) -> CtcRecognizer:
    """See `Family.load_recognizer`; an output layer for another vocabulary begins anew, by the seed."""
    set_seed(seed)
    options = {"dtype": torch.float32, **attention(model)}
    name, revision = str(model.name_or_path), model.revision or "main"
    if description is None:
        own = regularization(model)
        network = open_pretrained(
            model, lambda: AutoModelForCTC.from_pretrained(name, revision=revision, **options, **own)
        )
    elif weights is not None:
        config = AutoConfig.from_pretrained(description)
        network = AutoModelForCTC.from_pretrained(weights, config=config, **options)
    elif model.init == "scratch":
        network = AutoModelForCTC.from_config(AutoConfig.from_pretrained(description), **options)
    else:
        config = AutoConfig.from_pretrained(description)
        network = open_pretrained(
            model,
            lambda: AutoModelForCTC.from_pretrained(
                name, revision=revision, config=config, ignore_mismatched_sizes=True, **options
            ),
        )
    frozen = model.freeze_feature_encoder
    if hasattr(network, "freeze_feature_encoder") and (model.init == "pretrained" if frozen is None else frozen):
        network.freeze_feature_encoder()
    return CtcRecognizer(network, processor)


def open_exported(folder: Path, processor: Any) -> CtcRecognizer:
    """See `Family.open_exported`."""
    return CtcRecognizer(AutoModelForCTC.from_pretrained(folder, dtype=torch.float32), processor)
