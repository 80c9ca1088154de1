"""A Qwen3-ASR as it is trained and scored."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
from rayscribe.trainers.data.audio import SAMPLING_RATE_HZ
from rayscribe.trainers.data.features import INT16_RANGE
from rayscribe.trainers.models.recognizer import (
    IGNORED_LABEL,
    Decoding,
    LabelCollator,
    Recognition,
    Recognizer,
    Target,
    label_loss,
    without_end,
)

HOP, LEAST_SAMPLES, CHUNK = 160, 8000, 100


def audio_tokens(frames: int) -> int:
    """Outputs of the encoder for so many frames, as the processor counts them."""
    rest = frames % CHUNK
    for _ in range(3):
        rest = (rest - 1) // 2 + 1
    return rest + frames // CHUNK * 13


class ClipFeatures:
    """What the extractor gives of each clip alone, and silence behind it up to complete chunks of frames."""

    on_cpu = True

    def __init__(self, extractor: Any):
        self._extractor, self._device = extractor, torch.device("cpu")

    def to(self, device: Any) -> Self:
        self._device = torch.device(device)
        return self

    def inputs(self, clips: Sequence[torch.Tensor], edge_s: float | None) -> dict[str, torch.Tensor]:
        """Gives input_features (B, mel bins, frames), and their mask (B, frames)."""
        waves = [clip.cpu().numpy().astype(np.float32) / INT16_RANGE for clip in clips]
        options = {"sampling_rate": SAMPLING_RATE_HZ, "padding": True, "return_attention_mask": True}
        found = [self._extractor([wave], **options) for wave in waves]
        least = round((edge_s or 0.0) * SAMPLING_RATE_HZ / HOP)
        width = max(-(-least // CHUNK) * CHUNK, *(each["input_features"].shape[-1] for each in found))

        def padded(values: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.pad(values, (0, width - values.shape[-1])).to(self._device)

        return {
            "input_features": torch.cat([padded(each["input_features"]) for each in found]),
            "input_features_mask": torch.cat([padded(each["attention_mask"]) for each in found]),
        }

    def bins(self, inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        return list(inputs["input_features"])


@dataclass(frozen=True)
class Chat:
    """The tokens around an utterance, and a `LabelCollator`; can be pickled.

    Attributes:
        before: Tokens before those of the audio.
        behind: Tokens behind them, up to what the model writes.
    """

    before: tuple[int, ...]
    behind: tuple[int, ...]
    audio_id: int
    pad_id: int

    def __call__(self, labels: Sequence[Sequence[int]], samples: Sequence[int]) -> dict[str, torch.Tensor]:
        """Gives input_ids, attention_mask and labels, int64 (B, L); labels are -100 over the chat and behind a text."""
        prompts = [self.prompt(max(size, LEAST_SAMPLES) // HOP) for size in samples]
        rows = [[*prompt, *row] for prompt, row in zip(prompts, labels, strict=True)]
        wanted = [[*[IGNORED_LABEL] * len(prompt), *row] for prompt, row in zip(prompts, labels, strict=True)]
        width = max(map(len, rows))
        ids = torch.tensor([[*row, *[IGNORED_LABEL] * (width - len(row))] for row in rows])
        targets = torch.tensor([[*row, *[IGNORED_LABEL] * (width - len(row))] for row in wanted])
        mask = ids.ne(IGNORED_LABEL)
        return {
            "input_ids": ids.masked_fill(~mask, self.pad_id),
            "attention_mask": mask.to(torch.int64),
            "labels": targets,
        }

    def prompt(self, frames: int) -> list[int]:
        """What stands before the labels of an utterance of so many frames."""
        return [*self.before, *[self.audio_id] * audio_tokens(frames), *self.behind]


class Qwen3AsrRecognizer(Recognizer):
    """Qwen3ASRForConditionalGeneration and its Qwen3ASRProcessor."""

    scores_loss: ClassVar[bool] = False

    def new_features(self) -> ClipFeatures:
        return ClipFeatures(self.processor.feature_extractor)

    @property
    def collate_labels(self) -> LabelCollator:
        return self._chat

    @property
    def _chat(self) -> Chat:
        tokenizer, processor = self.processor.tokenizer, self.processor
        before = tokenizer(f"<|im_start|>user\n{processor.audio_bos_token}").input_ids
        behind = tokenizer(f"{processor.audio_eos_token}<|im_end|>\n<|im_start|>assistant\n").input_ids
        return Chat(tuple(before), tuple(behind), processor.audio_token_id, tokenizer.pad_token_id)

    def loss(self, outputs: Any, target: Target, count: torch.Tensor | int | None) -> torch.Tensor:
        """Each output predicts the token behind it."""
        return label_loss(outputs.logits[:, :-1], target.labels[:, 1:], count, target.smoothing)

    @torch.no_grad()
    def recognize(
        self, inputs: Mapping[str, torch.Tensor], labels: Sequence[Sequence[int]], decoding: Decoding
    ) -> list[Recognition]:
        frames = inputs["input_features_mask"].sum(dim=-1).tolist()
        prefix, end_id = self.limits.prefix_tokens, self.processor.tokenizer.eos_token_id
        prompts = [[*self._chat.prompt(count), *row[:prefix]] for count, row in zip(frames, labels, strict=True)]
        width = max(map(len, prompts))
        # The model goes on from the end, so that padding stands before.
        ids = torch.tensor([[*[self._chat.pad_id] * (width - len(row)), *row] for row in prompts])
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in prompts])
        device = self.model.device
        with decoding.precision(device):
            tokens = self.model.generate(
                **inputs,
                input_ids=ids.to(device),
                attention_mask=mask.to(device),
                max_new_tokens=decoding.part.max_length,
                num_beams=decoding.part.num_beams,
                do_sample=False,
            )[:, width:]
            rows = [without_end(row, {end_id, self._chat.pad_id}) for row in tokens.tolist()]
            ended = [row if len(row) == decoding.part.max_length else [*row, end_id] for row in rows]
            given = [[*row[:prefix], *own] for row, own in zip(labels, ended, strict=True)]
            sums = self._losses(inputs, given, frames, prefix)
        texts = self.processor.tokenizer.batch_decode(rows, skip_special_tokens=True)
        return [
            Recognition(text.strip(), None, -total / len(own))
            for text, total, own in zip(texts, sums, ended, strict=True)
        ]

    def _losses(
        self, inputs: Mapping[str, torch.Tensor], labels: Sequence[Sequence[int]], frames: list[int], first: int
    ) -> list[float]:
        """Cross-entropy of each row of labels from its token `first` on, nats."""
        collated = self._chat(labels, [count * HOP for count in frames])
        given = {name: value.to(self.model.device) for name, value in collated.items()}
        targets = given.pop("labels")
        for row, count in zip(targets, frames, strict=True):
            row[: len(self._chat.prompt(count)) + first] = IGNORED_LABEL
        logits = self.model(**inputs, **given).logits
        pairs = zip(logits, targets, strict=True)
        return [float(label_loss(row[None, :-1], target[None, 1:], 1)) for row, target in pairs]
