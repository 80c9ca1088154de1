"""How many outputs a convolutional encoder gives for a clip. Pure, so that lengths are checked without a model."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Convolution:
    """One layer along time; zeros are padded before and behind."""

    kernel: int
    stride: int
    padding: int = 0


# What one mel frame of Kaldi hears, and from one to the next: 25 and 10 ms at 16 kHz.
MEL_WINDOW = Convolution(kernel=400, stride=160)


@dataclass(frozen=True)
class FrameCount:
    """Counts outputs over a stack of layers, from the samples on, each fed by the one before."""

    layers: tuple[Convolution, ...]

    def __call__(self, samples: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Outputs of clips of so many samples, shape (N,); at least 0."""
        lengths = np.asarray(samples, dtype=np.int64)
        for layer in self.layers:
            lengths = (lengths + 2 * layer.padding - layer.kernel) // layer.stride + 1
        return np.maximum(lengths, 0)

    @property
    def stride(self) -> int:
        """Samples from one output to the next."""
        return math.prod(layer.stride for layer in self.layers)

    @property
    def least_samples(self) -> int:
        """Samples of the shortest clip that gives an output."""
        length = 1
        for layer in reversed(self.layers):
            length = max(1, (length - 1) * layer.stride + layer.kernel - 2 * layer.padding)
        return length
