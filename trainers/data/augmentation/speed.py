"""Speed perturbation (Ko et al. 2015, "Audio Augmentation for Speech Recognition"): tempo and pitch by one factor."""

import numpy as np
import numpy.typing as npt
import soxr

from trainers.config.parts.augment_part import AugmentPart
from trainers.data.audio import SAMPLING_RATE_HZ
from trainers.data.augmentation.draws import Stage, generator_of
from trainers.data.batch_plan import FloatArray, IntArray

# Cost of drawing one factor by itself, relative to one of many that are drawn at once.
_COST_OF_ONE = 2500


def change_speed(samples: npt.NDArray[np.float32], factor: float) -> npt.NDArray[np.float32]:
    """Plays samples, float32 (T,), faster (1.1 makes 1 s of 1.1 s) or slower, at the same sampling rate.

    Returns:
        float32 (⌊T / factor⌋,), as in `Speeds.durations_s`.
    """
    length = int(changed_lengths(len(samples), factor))
    if length == len(samples):
        return samples
    changed = np.asarray(soxr.resample(samples, factor, 1.0, quality="HQ"), dtype=np.float32)[:length]
    return np.pad(changed, (0, length - len(changed)))


def changed_lengths(samples: npt.ArrayLike, factors: npt.ArrayLike) -> FloatArray:
    """Returns the numbers of samples at another speed; at least one."""
    lengths: FloatArray = np.maximum(np.floor(np.asarray(samples) / np.asarray(factors)), 1.0)
    return lengths


class Speeds:
    """The speed factors of the utterances of an index in each epoch.

    `durations_s`: durations of the stored clips, shape (N,). A clip that fits into `context_s` never becomes longer.
    """

    def __init__(self, part: AugmentPart, seed: int, durations_s: FloatArray, context_s: float):
        self._part, self._seed = part, seed
        self._samples = np.rint(durations_s * SAMPLING_RATE_HZ)
        # The factor at which a clip exactly fits.
        self._least = np.minimum(self._samples / (context_s * SAMPLING_RATE_HZ), 1.0)
        self._drawn: tuple[int, FloatArray] | None = None

    def factors(self, epoch: int) -> FloatArray:
        """Returns the factors of an epoch, shape (N,)."""
        if self._drawn is None or self._drawn[0] != epoch:
            chances = generator_of(self._seed, epoch, Stage.SPEED).random(len(self._samples))
            self._drawn = epoch, self._factors(chances, self._least)
        return self._drawn[1]

    def factor(self, position: int, epoch: int) -> float:
        """Returns the factor of one utterance, without drawing those of all others if they are not cached."""
        if self._drawn is not None and self._drawn[0] == epoch:
            return float(self._drawn[1][position])
        generator = generator_of(self._seed, epoch, Stage.SPEED)
        # Each factor takes one number of the generator.
        generator.bit_generator.advance(position)  # type: ignore[attr-defined]
        return float(self._factors(generator.random(1), self._least[position])[0])

    def _factors(self, chances: FloatArray, least: FloatArray) -> FloatArray:
        if self._part.speed_range is not None:
            low, high = self._part.speed_range
            factors = low + chances * (high - low)
        else:
            choices = np.asarray(self._part.speed_factors)
            factors = choices[(chances * len(choices)).astype(np.int64)]
        return np.maximum(factors, least)

    def durations_s(self, epoch: int) -> FloatArray:
        """Returns the durations at the speeds of an epoch, shape (N,)."""
        return changed_lengths(self._samples, self.factors(epoch)) / SAMPLING_RATE_HZ

    def durations_of(self, positions: IntArray, epoch: int) -> FloatArray:
        """Returns the durations of some utterances, shape (n,): a mix draws only a few in some passes."""
        if len(positions) * _COST_OF_ONE > len(self._samples):
            return self.durations_s(epoch)[positions]
        factors = [self.factor(position, epoch) for position in positions.tolist()]
        return changed_lengths(self._samples[positions], factors) / SAMPLING_RATE_HZ

    def longest_s(self) -> FloatArray:
        """Returns the longest duration of each utterance in any epoch, shape (N,)."""
        return changed_lengths(self._samples, np.maximum(self._part.slowest, self._least)) / SAMPLING_RATE_HZ
