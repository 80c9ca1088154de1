"""The random generators of augmentation: a function of (seed, epoch, utterance, stage), and of nothing else.

So a draw does not depend on which rank, loader process or forward pass has the utterance, and a resumed run repeats it.
"""

from enum import IntEnum

import numpy as np


class Stage(IntEnum):
    """What is drawn; each has a generator of its own, so that one that is switched on or off changes no other.

    Not 0: a seed sequence is padded with zeros, and the batch plan's is [seed, epoch].
    """

    SPEED = 1
    RIR = 2
    NOISE = 3
    GAIN = 4
    MASKS = 5


def generator_of(seed: int, epoch: int, stage: Stage, position: int = 0) -> np.random.Generator:
    """The generator of one stage for the utterance at a position of the index; 0 also for a draw of all of an epoch."""
    return np.random.default_rng([seed, epoch, position, stage])
