"""What computes a model's input from samples, whatever it is."""

from collections.abc import Sequence
from typing import Any, Protocol, Self

import numpy as np
import torch

# What stored samples are divided by.
INT16_RANGE = 32768.0
# Key of the true lengths among the inputs, int64 (B,): elements of the model's input without padding.
LENGTHS = "lengths"


class Features(Protocol):
    """Computes what a model is given, from clips."""

    @property
    def on_cpu(self) -> bool:
        """Whether it computes on the CPU, whatever the model's device is: clips then stay there."""

    def to(self, device: Any) -> Self:
        """Moves it to the model's device."""

    def inputs(self, clips: Sequence[torch.Tensor], edge_s: float | None) -> dict[str, torch.Tensor]:
        """The model's inputs, and `LENGTHS` where its loss asks for them.

        Args:
            clips: int16 stored samples of each clip, shape (T_i,), on the model's device, or on the CPU where it
                computes there.
            edge_s: Seconds that each is padded to. None: the longest of them, and the others where they are shorter.
        """

    def bins(self, inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        """A view of each clip's input, (frequency bins, frames); samples have one bin. What is written there counts."""


def pad_samples(clips: list[np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
    """Stacks int16 clips (T_i,) for the way to the device.

    Returns:
        int16 samples of shape (B, max T_i), zeros after each clip, and int64 lengths of shape (B,).
    """
    lengths = torch.tensor([len(clip) for clip in clips], dtype=torch.int64)
    return torch.nn.utils.rnn.pad_sequence([torch.from_numpy(clip) for clip in clips], batch_first=True), lengths
