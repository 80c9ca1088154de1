"""An encoder-decoder model as Rayscribe trains and scores it, where transformers' own `generate` does all of it."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSpeechSeq2Seq

from trainers.config.parts.model_part import ModelPart
from trainers.data.extractor_features import ExtractorFeatures
from trainers.data.features import LENGTHS
from trainers.models.decoder_labels import label_loss, pad_labels, without_end
from trainers.models.family import Limits
from trainers.models.pretrained import attention, open_pretrained
from trainers.models.recognizer import Alternative, Decoding, LabelCollator, Recognition, Recognizer, Target
from trainers.models.seq2seq.seq2seq_family import Seq2SeqFamily, Seq2SeqProcessor


class Seq2SeqRecognizer(Recognizer):
    """A model of AutoModelForSpeechSeq2Seq and its Seq2SeqProcessor."""

    @property
    def limits(self) -> Limits:
        """See `Recognizer`."""
        return self.family.limits_of(self.model.config, self.processor)

    @property
    def family(self) -> Seq2SeqFamily:
        """See `Recognizer`."""
        return Seq2SeqFamily()

    def new_features(self) -> ExtractorFeatures:
        """See `Recognizer`."""
        return ExtractorFeatures(self.processor.feature_extractor, masked=True)

    @property
    def collate_labels(self) -> LabelCollator:
        """See `Recognizer`."""
        return partial(pad_labels, start_id=self.processor.start_id, pad_id=self.processor.pad_id)

    def loss(self, outputs: Any, target: Target, count: torch.Tensor | int | None) -> torch.Tensor:
        """See `Recognizer`: cross-entropy."""
        return label_loss(outputs.logits, target.labels, count, target.smoothing)

    @torch.no_grad()
    def recognize(
        self, inputs: Mapping[str, torch.Tensor], labels: Sequence[Sequence[int]], decoding: Decoding
    ) -> list[Recognition]:
        """See `Recognizer`."""
        given = {name: value for name, value in inputs.items() if name != LENGTHS}
        device, size = self.model.device, len(labels)
        most = min(decoding.max_length, self.limits.new_tokens or decoding.max_length)
        with decoding.precision(device):
            losses = self._sums(given, labels)
            tokens = self.model.generate(
                **given,
                max_new_tokens=most,
                num_beams=decoding.num_beams,
                num_return_sequences=decoding.nbest or 1,
                do_sample=False,
                decoder_start_token_id=self.processor.start_id,
                eos_token_id=self.processor.end_id,
                pad_token_id=self.processor.pad_id,
                **self._language_options,
            )
            each = len(tokens) // size
            repeated = {name: value.repeat_interleave(each, dim=0) for name, value in given.items()}
            found = self._alternatives(repeated, tokens[:, 1:], most)
        grouped = [tuple(found[start : start + each]) for start in range(0, len(found), each)]
        return [
            Recognition(group[0].text, loss, group[0].avg_logprob, group if decoding.nbest is not None else None)
            for group, loss in zip(grouped, losses, strict=True)
        ]

    @property
    def _language_options(self) -> dict[str, int]:
        """What has `generate` begin with the token of the language."""
        language_id = self.processor.language_id
        return {"forced_bos_token_id": language_id} if language_id is not None else {}

    def _alternatives(self, given: Mapping[str, torch.Tensor], tokens: torch.Tensor, most: int) -> list[Alternative]:
        """Hypotheses of their tokens, (R, T) and padded."""
        rows = [without_end(row, {self.processor.pad_id, self.processor.end_id}) for row in tokens.tolist()]
        texts = self.processor.tokenizer.batch_decode(rows, skip_special_tokens=True)
        ended = [row if len(row) == most else [*row, self.processor.end_id] for row in rows]
        # The token of a language is given.
        first = 0 if self.processor.language_id is None else 1
        sums = self._sums(given, ended, first)
        return [
            Alternative(text.strip(), -total / max(1, len(row) - first))
            for text, total, row in zip(texts, sums, ended, strict=True)
        ]

    def _sums(self, given: Mapping[str, torch.Tensor], labels: Sequence[Sequence[int]], first: int = 0) -> list[float]:
        """Cross-entropy of each row of labels from its token `first` on, nats."""
        collated = {name: value.to(self.model.device) for name, value in self.collate_labels(labels).items()}
        targets = collated.pop("labels")
        logits = self.model(**given, **collated).logits
        rows = zip(logits[:, first:], targets[:, first:], strict=True)
        return [float(label_loss(row[None], target[None], 1)) for row, target in rows]


def load(model: ModelPart, processor: Seq2SeqProcessor, weights: Path | None) -> Seq2SeqRecognizer:
    """See `Family.load_recognizer`."""
    options = {"dtype": torch.float32, **attention(model)}
    if weights is not None:
        network = AutoModelForSpeechSeq2Seq.from_pretrained(weights, **options)
        _settle_generation(network, processor)
        return Seq2SeqRecognizer(network, processor)
    name, revision = str(model.name_or_path), model.revision or "main"
    network = open_pretrained(
        model, lambda: AutoModelForSpeechSeq2Seq.from_pretrained(name, revision=revision, **options)
    )
    for config in (network.config, getattr(network.config, "encoder", None)):
        # Of a wav2vec2 encoder: what no field of the config asks for.
        for name_of, off in (("layerdrop", 0.0), ("apply_spec_augment", False)):
            if hasattr(config, name_of):
                setattr(config, name_of, off)
    _settle_generation(network, processor)
    return Seq2SeqRecognizer(network, processor)


def _settle_generation(network: Any, processor: Seq2SeqProcessor) -> None:
    """Has the exported model write the language by itself, in a pipeline too."""
    if processor.language_id is not None:
        network.generation_config.forced_bos_token_id = processor.language_id


def open_exported(folder: Path, processor: Seq2SeqProcessor) -> Seq2SeqRecognizer:
    """See `Family.open_exported`."""
    network = AutoModelForSpeechSeq2Seq.from_pretrained(folder, dtype=torch.float32)
    return Seq2SeqRecognizer(network, processor)
