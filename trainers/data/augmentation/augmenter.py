"""Augmentation of a training clip: speed, reverberation, noise, gain, and the masks of its features."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from trainers.config.parts.augment_part import AugmentPart
from trainers.data.audio import SAMPLING_RATE_HZ
from trainers.data.augmentation.draws import Stage, generator_of
from trainers.data.augmentation.recording_pool import RecordingPool
from trainers.data.augmentation.speed import Speeds, change_speed

FULL_SCALE = np.float32(32_768)
Samples = npt.NDArray[np.float32]
Stretch = tuple[float, float]


@dataclass(frozen=True)
class Masks:
    """The masks of one clip by SpecAugment (Park et al. 2019): times in seconds, bands as fractions of the bins."""

    duration_s: float
    times_s: tuple[Stretch, ...]
    bands: tuple[Stretch, ...]


class Augmenter:
    """Changes clips of one prepared set. A pure function of the clip, its position in the index, and the epoch.

    A clip's speed, noise or reverberation is not changed without `speeds`, `noise` or `rirs` (impulse responses).
    """

    def __init__(
        self,
        part: AugmentPart,
        seed: int,
        *,
        speeds: Speeds | None,
        noise: RecordingPool | None,
        rirs: RecordingPool | None,
    ):
        self._part, self._seed = part, seed
        self._speeds, self._noise, self._rirs = speeds, noise, rirs

    def change(self, clip: npt.NDArray[np.int16], position: int, epoch: int) -> npt.NDArray[np.int16]:
        """Returns a clip, int16 (T,), as it is trained on in an epoch; `position` is its position in the index.

        Returns:
            int16 samples, at the speed of `Speeds`; values outside full scale are clipped.

        Raises:
            DataError: a recording of a manifest cannot be read.
        """
        samples: Samples = clip.astype(np.float32) / FULL_SCALE
        if self._speeds is not None:
            samples = change_speed(samples, self._speeds.factor(position, epoch))
        generator = self._generator(epoch, Stage.RIR, position)
        if self._rirs is not None and generator.random() < self._part.rir_probability:
            samples = reverberate(samples, self._rirs.draw(generator))
        generator = self._generator(epoch, Stage.NOISE, position)
        if self._noise is not None and generator.random() < self._part.noise_probability:
            low_db, high_db = self._part.noise_snr_db
            samples = add_noise(samples, self._noise.draw(generator), generator.uniform(low_db, high_db), generator)
        if self._part.gain_db is not None:
            low_db, high_db = self._part.gain_db
            gain_db = self._generator(epoch, Stage.GAIN, position).uniform(low_db, high_db)
            samples = np.multiply(samples, amplitude(gain_db), dtype=np.float32)
        changed: npt.NDArray[np.int16] = np.clip(np.rint(samples * FULL_SCALE), -32_768, 32_767).astype(np.int16)
        return changed

    def masks(self, length: int, position: int, epoch: int) -> Masks | None:
        """Returns the masks of the features of a changed clip of `length` samples; None if masking is off."""
        if not self._part.masks:
            return None
        return draw_masks(self._part, length / SAMPLING_RATE_HZ, self._generator(epoch, Stage.MASKS, position))

    def _generator(self, epoch: int, stage: Stage, position: int) -> np.random.Generator:
        return generator_of(self._seed, epoch, stage, position)


def amplitude(level_db: float) -> np.float32:
    """Returns the factor of samples that changes their level by `level_db`."""
    return np.float32(10 ** (level_db / 20))


def power(samples: Samples) -> float:
    """Returns the mean square."""
    return float(np.square(samples, dtype=np.float64).mean())


def add_noise(samples: Samples, noise: Samples, snr_db: float, generator: np.random.Generator) -> Samples:
    """Adds a stretch of a noise recording, which is repeated if it is shorter than the clip.

    Args:
        samples: float32 (T,).
        noise: float32 (N,).
        snr_db: Mean power of the clip relative to that of the stretch, dB.
        generator: Draws the start of the stretch.

    Returns:
        float32 (T,); the clip unchanged if it or the stretch is silent.
    """
    start = int(generator.integers(max(1, len(noise) - len(samples) + 1) if len(noise) >= len(samples) else len(noise)))
    stretch = np.take(noise, np.arange(start, start + len(samples)), mode="wrap")
    signal_power, noise_power = power(samples), power(stretch)
    if not signal_power or not noise_power:
        return samples
    return samples + stretch * (np.float32(np.sqrt(signal_power / noise_power)) * amplitude(-snr_db))


def reverberate(samples: Samples, response: Samples) -> Samples:
    """Convolves a clip, float32 (T,), with an impulse response, float32 (R,).

    The direct path, the response's largest value, is aligned with the original, so that the clip is neither delayed nor
    longer; its mean power is kept. If the clip or the response is silent, the clip is unchanged.
    """
    direct = int(np.abs(response).argmax())
    length = len(samples) + min(len(response), direct + len(samples)) - 1
    size = 1 << (length - 1).bit_length()
    spectrum = np.fft.rfft(samples, size) * np.fft.rfft(response[: direct + len(samples)], size)
    wet = np.fft.irfft(spectrum, size)[direct : direct + len(samples)].astype(np.float32)
    before, after = power(samples), power(wet)
    if not before or not after:
        return samples
    return wet * np.float32(np.sqrt(before / after))


def draw_masks(part: AugmentPart, duration_s: float, generator: np.random.Generator) -> Masks:
    """Draws widths up to the part's maximum, uniformly, and then their positions, uniformly."""
    longest_s = min(part.time_mask_s, part.time_mask_fraction * duration_s)
    times_s = tuple(_stretch(generator, longest_s, duration_s) for _ in range(part.time_masks))
    bands = tuple(_stretch(generator, part.frequency_mask_fraction, 1.0) for _ in range(part.frequency_masks))
    return Masks(duration_s, times_s, bands)


def _stretch(generator: np.random.Generator, widest: float, length: float) -> Stretch:
    width = generator.uniform(0, widest)
    start = generator.uniform(0, length - width)
    return start, start + width


def mask_features(features: torch.Tensor, masks: Masks, frames_per_s: float) -> torch.Tensor:
    """Masks features (bins, frames) of one padded clip in place, with the mean over the clip's unpadded frames."""
    bins, frames = features.shape
    own = features[:, : max(1, min(frames, round(masks.duration_s * frames_per_s)))]
    mean = own.mean()
    for start_s, end_s in masks.times_s:
        own[:, round(start_s * frames_per_s) : round(end_s * frames_per_s)] = mean
    for low, high in masks.bands:
        own[round(low * bins) : round(high * bins)] = mean
    return features
