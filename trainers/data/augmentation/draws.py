"""The random generators of augmentation: a function of (seed, epoch, utterance, stage) only.

A draw thus does not depend on the rank, loader process or forward pass, and a resumed run repeats it.
"""

from enum import IntEnum

import numpy as np


class Stage(IntEnum):
    """Stages with separate generators, so that switching one on or off changes no other.

    Numbered from 1: a seed sequence is padded with zeros, and the batch plan's is [seed, epoch].
    """

    SPEED = 1
    RIR = 2
    NOISE = 3
    GAIN = 4
    MASKS = 5


def generator_of(seed: int, epoch: int, stage: Stage, position: int = 0) -> np.random.Generator:
    """Returns the generator of one stage for the utterance at an index position; 0 for draws of a complete epoch."""
    return np.random.default_rng([seed, epoch, position, stage])
