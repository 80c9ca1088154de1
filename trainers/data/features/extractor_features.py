"""A model's input as its own feature extractor gives it."""

from collections.abc import Sequence
from functools import cache
from typing import Any, Self

import numpy as np
import torch

from trainers.data.audio import SAMPLING_RATE_HZ
from trainers.data.features.gpu_extractors import GpuExtractor, gpu_extractor
from trainers.data.features.model_input import INT16_RANGE, LENGTHS


class ExtractorFeatures:
    """Input that is what a model's own extractor gives for each clip alone, and padding behind it.

    On a CPU the extractor itself runs, one clip at a time: padding moves none of its values. A GPU computes a batch at
    once, where `gpu_extractors` knows the extractor. Where it is `masked`, the model is given an attention mask.
    """

    def __init__(self, extractor: Any, *, masked: bool):
        self._extractor, self._masked = extractor, masked
        self._device: Any = torch.device("cpu")
        self._on_gpu: GpuExtractor | None = None
        # Padding has one length for each edge.
        self._padded_length = cache(lambda samples: len(self._extract(np.zeros(samples, np.float32))))

    @property
    def on_cpu(self) -> bool:
        return self._on_gpu is None

    def to(self, device: Any) -> Self:
        if torch.device(device) != self._device:
            self._device = torch.device(device)
            known = gpu_extractor(self._extractor) if self._device.type == "cuda" else None
            self._on_gpu = known.to(self._device) if known is not None else None
        return self

    def inputs(self, clips: Sequence[torch.Tensor], edge_s: float | None) -> dict[str, torch.Tensor]:
        """Gives the extractor's own input, float32 (B, T, …), and where the model takes one its mask."""
        if self._on_gpu is not None:
            counts = self._on_gpu.lengths([len(clip) for clip in clips])
            values: Sequence[torch.Tensor] = list(self._on_gpu(clips))
        else:
            values = [self._extract(clip.cpu().numpy().astype(np.float32) / INT16_RANGE) for clip in clips]
            counts = [len(each) for each in values]
        longest = max(counts)
        width = longest if edge_s is None else max(longest, self._padded_length(round(edge_s * SAMPLING_RATE_HZ)))
        padding = float(self._extractor.padding_value)
        batch = torch.full((len(counts), width, *values[0].shape[1:]), padding, device=values[0].device)
        for row, own, count in zip(batch, values, counts, strict=True):
            row[:count] = own[:count]
        lengths = torch.tensor(counts).to(self._device)
        inputs = {self._extractor.model_input_names[0]: batch.to(self._device), LENGTHS: lengths}
        if self._masked:
            inputs["attention_mask"] = (torch.arange(width, device=self._device) < lengths[:, None]).to(torch.int64)
        return inputs

    def bins(self, inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        """Of samples (B, T), or of several mel frames side by side (B, T, frames × bins)."""
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
