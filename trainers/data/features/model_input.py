"""The interface of the modules that compute a model's input from samples."""

from collections.abc import Sequence
from typing import Any, Protocol, Self

import numpy as np
import torch

# Divisor of stored samples.
INT16_RANGE = 32768.0
# Key of the true lengths among the inputs, int64 (B,): elements of the model's input without padding.
LENGTHS = "lengths"


class Features(Protocol):
    """Computes a model's inputs from clips."""

    @property
    def on_cpu(self) -> bool:
        """True if this computes on the CPU, whatever the model's device is: clips then stay there."""

    def to(self, device: Any) -> Self:
        """Moves this to the model's device."""

    def inputs(self, clips: Sequence[torch.Tensor], edge_s: float | None) -> dict[str, torch.Tensor]:
        """Returns the model's inputs, and `LENGTHS` if its loss uses them.

        Args:
            clips: int16 stored samples of each clip, shape (T_i,), on the model's device, or on the CPU if `on_cpu` is
                True.
            edge_s: Seconds to which each clip is padded. None: pad to the longest clip of the batch.
        """

    def bins(self, inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        """Returns a view of each clip's input, (frequency bins, frames); samples have one bin. Writable."""


def pad_samples(clips: list[np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
    """Stacks int16 clips (T_i,) for transfer to the device.

    Returns:
        int16 samples of shape (B, max T_i), zeros after each clip, and int64 lengths of shape (B,).
    """
    lengths = torch.tensor([len(clip) for clip in clips], dtype=torch.int64)
    return torch.nn.utils.rnn.pad_sequence([torch.from_numpy(clip) for clip in clips], batch_first=True), lengths
