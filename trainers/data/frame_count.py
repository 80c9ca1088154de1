"""Computes the number of outputs of a convolutional encoder. Pure, so that lengths are checked without a model."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Convolution:
    """One layer along time, with zero padding at both ends."""

    kernel: int
    stride: int
    padding: int = 0


# Window and hop of Kaldi's mel frames: 25 and 10 ms at 16 kHz.
MEL_WINDOW = Convolution(kernel=400, stride=160)


@dataclass(frozen=True)
class FrameCount:
    """Counts the outputs of a stack of layers, of which the first takes the samples."""

    layers: tuple[Convolution, ...]

    def __call__(self, samples: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Returns the numbers of outputs for clips with these numbers of samples, shape (N,); at least 0."""
        lengths = np.asarray(samples, dtype=np.int64)
        for layer in self.layers:
            lengths = (lengths + 2 * layer.padding - layer.kernel) // layer.stride + 1
        return np.maximum(lengths, 0)

    @property
    def stride(self) -> int:
        """Number of samples from one output to the next."""
        return math.prod(layer.stride for layer in self.layers)

    @property
    def least_samples(self) -> int:
        """Number of samples of the shortest clip that has an output."""
        length = 1
        for layer in reversed(self.layers):
            length = max(1, (length - 1) * layer.stride + layer.kernel - 2 * layer.padding)
        return length
