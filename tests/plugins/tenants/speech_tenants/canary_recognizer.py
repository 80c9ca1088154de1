"""A Canary as it is trained and scored."""

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from rayscribe.trainers.data.features import LENGTHS, ExtractorFeatures
from rayscribe.trainers.models.recognizer import (
    Decoding,
    LabelCollator,
    Recognition,
    Recognizer,
    pad_labels,
    row_losses,
    without_end,
)


class CanaryRecognizer(Recognizer):
    """CanaryForConditionalGeneration and its CanaryProcessor."""

    def new_features(self) -> ExtractorFeatures:
        return ExtractorFeatures(self.processor.feature_extractor, masked=True)

    @property
    def collate_labels(self) -> LabelCollator:
        config = self.model.config
        return partial(pad_labels, start_id=config.decoder_start_token_id, pad_id=config.pad_token_id)

    @torch.no_grad()
    def recognize(
        self, inputs: Mapping[str, torch.Tensor], labels: Sequence[Sequence[int]], decoding: Decoding
    ) -> list[Recognition]:
        given = {name: value for name, value in inputs.items() if name != LENGTHS}
        config, size = self.model.config, self.limits.prefix_tokens
        prompts = torch.tensor([[config.decoder_start_token_id, *row[:size]] for row in labels]).to(self.model.device)
        with decoding.precision(self.model.device):
            losses = row_losses(self.model, given, self.collate_labels(labels, ()))
            tokens = self.model.generate(
                **given,
                decoder_input_ids=prompts,
                max_new_tokens=decoding.part.max_length,
                num_beams=decoding.part.num_beams,
                do_sample=False,
            )
            ends = {config.pad_token_id, config.eos_token_id}
            rows = [without_end(row, ends) for row in tokens[:, size + 1 :].tolist()]
            ended = [row if len(row) == decoding.part.max_length else [*row, config.eos_token_id] for row in rows]
            prompted = [[*row[:size], *own] for row, own in zip(labels, ended, strict=True)]
            sums = row_losses(self.model, given, self.collate_labels(prompted, ()), size)
        texts = self.processor.tokenizer.batch_decode(rows, skip_special_tokens=True)
        return [
            Recognition(text.strip(), loss, -total / len(own))
            for text, loss, total, own in zip(texts, losses, sums, ended, strict=True)
        ]
