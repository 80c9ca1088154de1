"""Input that is what a model's own feature extractor gives for each clip alone, and padding behind it."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Self

import numpy as np
import torch

from trainers.data.audio import SAMPLING_RATE_HZ
from trainers.data.features import LENGTHS


class ExtractorFeatures:
    """See `features.Features`. The extractor runs on the CPU, one clip at a time: padding moves none of its values.

    Args:
        extractor: A transformers feature extractor.
        masked: Whether the model is given an attention mask.
    """

    on_cpu = True

    def __init__(self, extractor: Any, *, masked: bool):
        self._extractor, self._masked = extractor, masked
        self._device: Any = "cpu"
        # Padding has one length for each edge.
        self._padded_length = lru_cache(maxsize=None)(self._length_of)

    def to(self, device: Any) -> Self:
        """See `Features`."""
        self._device = device
        return self

    def inputs(self, clips: Sequence[torch.Tensor], edge_s: float | None) -> dict[str, torch.Tensor]:
        """See `Features`: the extractor's own input, float32 (B, T, …), and where the model takes one its mask."""
        name = self._extractor.model_input_names[0]
        each = [self._extract(clip.cpu().numpy().astype(np.float32) / 32768.0) for clip in clips]
        lengths = torch.tensor([len(values) for values in each])
        longest = int(lengths.max())
        width = longest if edge_s is None else max(longest, self._padded_length(round(edge_s * SAMPLING_RATE_HZ)))
        batch = torch.full((len(each), width, *each[0].shape[1:]), float(self._extractor.padding_value))
        for row, values in zip(batch, each, strict=True):
            row[: len(values)] = values
        inputs = {name: batch, LENGTHS: lengths}
        if self._masked:
            inputs["attention_mask"] = (torch.arange(width) < lengths[:, None]).to(torch.int64)
        return {key: value.to(self._device) for key, value in inputs.items()}

    def bins(self, inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        """See `Features`: of samples (B, T), or of several mel frames side by side (B, T, frames × bins)."""
        values = inputs[self._extractor.model_input_names[0]]
        if values.ndim == 2:
            return [row[None] for row in values]
        return [row.view(-1, row.shape[1] // self._extractor.stride).T for row in values]

    def _extract(self, waveform: np.ndarray) -> torch.Tensor:
        """Values of one clip without those that its mask excludes, float32 (T, …)."""
        found = self._extractor(
            waveform, sampling_rate=SAMPLING_RATE_HZ, return_tensors="pt", return_attention_mask=True, padding=True
        )
        values: torch.Tensor = found[self._extractor.model_input_names[0]][0]
        return values[: int(found["attention_mask"][0].sum())]

    def _length_of(self, samples: int) -> int:
        return len(self._extract(np.zeros(samples, np.float32)))
