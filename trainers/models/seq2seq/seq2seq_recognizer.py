"""Runs an encoder-decoder model for training and scoring; transformers' own `generate` decodes it."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from transformers import AutoModelForSpeechSeq2Seq, LogitsProcessor

from trainers.data.features import LENGTHS, ExtractorFeatures
from trainers.models.label_codec import LabelCodec
from trainers.models.pretrained import network_options
from trainers.models.recognizer import (
    Alternative,
    Decoding,
    LabelCollator,
    Recognition,
    Recognizer,
    pad_labels,
    row_losses,
    without_end,
)
from trainers.models.seq2seq.seq2seq_family import Seq2SeqProcessor
from trainers.models.seq2seq.seq2seq_part import Seq2SeqPart
from trainers.models.sources.loaded_weights import weights_from_pretrained


class FirstTokens(LogitsProcessor):
    """Forces a first token for each hypothesis; `forced_bos_token_id` forces the same token for a complete batch."""

    def __init__(self, tokens: torch.Tensor):
        self._tokens = tokens

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Returns the scores (B × beams, V), at the first step 0 for the row's token and minus infinity for others."""
        if input_ids.shape[1] > 1:
            return scores
        first = torch.full_like(scores, -torch.inf)
        return first.scatter_(1, self._tokens.to(scores.device)[:, None], 0.0)


class Seq2SeqRecognizer(Recognizer):
    """A model of AutoModelForSpeechSeq2Seq and its Seq2SeqProcessor."""

    @classmethod
    def load(
        cls,
        codec: LabelCodec,
        model: Seq2SeqPart,
        processor: Seq2SeqProcessor,
        description: Path | None,
        seed: int,
        weights: Path | None,
    ) -> "Seq2SeqRecognizer":
        """Loads the weights of a checkpoint or the config's; the description is not needed."""
        options = network_options(model)
        if weights is not None:
            network = AutoModelForSpeechSeq2Seq.from_pretrained(weights, **options)
        else:
            network = weights_from_pretrained(model, AutoModelForSpeechSeq2Seq, **options)
            for config in (network.config, getattr(network.config, "encoder", None)):
                # Turned off, since the model part has no fields for these settings of a wav2vec2 encoder.
                for name, off in (("layerdrop", 0.0), ("apply_spec_augment", False)):
                    if hasattr(config, name):
                        setattr(config, name, off)
        if processor.language_id is not None:
            # The exported model then begins with the language by itself, in a pipeline, too.
            network.generation_config.forced_bos_token_id = processor.language_id
        return cls(network, processor, codec)

    def new_features(self) -> ExtractorFeatures:
        return ExtractorFeatures(self.processor.feature_extractor, masked=True)

    @property
    def collate_labels(self) -> LabelCollator:
        return partial(pad_labels, start_id=self.processor.start_id, pad_id=self.processor.pad_id)

    @torch.no_grad()
    def recognize(
        self, inputs: Mapping[str, torch.Tensor], labels: Sequence[Sequence[int]], decoding: Decoding
    ) -> list[Recognition]:
        given = {name: value for name, value in inputs.items() if name != LENGTHS}
        device, size = self.model.device, len(labels)
        most = min(decoding.part.max_length, self.limits.new_tokens or decoding.part.max_length)
        languages: list[LogitsProcessor] = []
        if self.processor.language_id is not None:
            # Each hypothesis begins with its labels' language.
            firsts = torch.tensor([ids[0] for ids in labels])
            languages.append(FirstTokens(firsts.repeat_interleave(decoding.part.num_beams)))
        with decoding.precision(device):
            losses = row_losses(self.model, given, self.collate_labels(labels, ()))
            tokens = self.model.generate(
                **given,
                max_new_tokens=most,
                num_beams=decoding.part.num_beams,
                num_return_sequences=decoding.nbest or 1,
                do_sample=False,
                decoder_start_token_id=self.processor.start_id,
                eos_token_id=self.processor.end_id,
                pad_token_id=self.processor.pad_id,
                logits_processor=languages,
            )
            each = len(tokens) // size
            repeated = {name: value.repeat_interleave(each, dim=0) for name, value in given.items()}
            found = self._alternatives(repeated, tokens[:, 1:], most)
        grouped = [tuple(found[start : start + each]) for start in range(0, len(found), each)]
        return [
            Recognition(group[0].text, loss, group[0].avg_logprob, group if decoding.nbest is not None else None)
            for group, loss in zip(grouped, losses, strict=True)
        ]

    def _alternatives(self, given: Mapping[str, torch.Tensor], tokens: torch.Tensor, most: int) -> list[Alternative]:
        """Returns the hypotheses of padded tokens, (R, T)."""
        rows = [without_end(row, {self.processor.pad_id, self.processor.end_id}) for row in tokens.tolist()]
        texts = self.processor.tokenizer.batch_decode(rows, skip_special_tokens=True)
        ended = [row if len(row) == most else [*row, self.processor.end_id] for row in rows]
        # The language's token is given, not generated.
        first = 0 if self.processor.language_id is None else 1
        sums = row_losses(self.model, given, self.collate_labels(ended, ()), first)
        return [
            Alternative(text.strip(), -total / max(1, len(row) - first))
            for text, total, row in zip(texts, sums, ended, strict=True)
        ]
