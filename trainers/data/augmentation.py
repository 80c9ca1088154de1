"""Augments training clips: speed, reverberation, noise, gain, and masks of their features.

A draw is a function of (seed, epoch, utterance, stage) only. So it does not depend on the rank, loader process or
forward pass, and a resumed run repeats it.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import soxr

from trainers.config.parts.augment_part import AugmentPart
from trainers.data.audio import SAMPLING_RATE_HZ, decode
from trainers.data.batch_plan import FloatArray, IntArray
from trainers.data.sounds import draw_sound
from trainers.data.sources.archives.source_files import LocatedRows
from trainers.data.sources.manifest import segment
from trainers.data.sources.recording_readers import RecordingReader, Row
from trainers.errors import AudioError, DataError

if TYPE_CHECKING:
    import torch

Samples = npt.NDArray[np.float32]
Stretch = tuple[float, float]
FULL_SCALE = np.float32(32_768)
# Cost of drawing one speed factor by itself, relative to one of many that are drawn at once.
_COST_OF_ONE = 2500
# Limit of the recordings that each pool keeps per process: 70 minutes at 16 kHz. Others are read again when drawn.
KEPT_BYTES = 256 * 2**20


class Stage(IntEnum):
    """Stages with separate generators, so that switching one on or off changes no other.

    They are numbered from 1, since a seed sequence is padded with zeros, and the batch plan's is [seed, epoch].
    """

    SPEED = 1
    RIR = 2
    NOISE = 3
    GAIN = 4
    MASKS = 5
    NO_SPEECH = 6


def generator_of(seed: int, epoch: int, stage: Stage, position: int = 0) -> np.random.Generator:
    """Returns the generator of one stage for the utterance at an index position, which is 0 for a complete epoch."""
    return np.random.default_rng([seed, epoch, position, stage])


def change_speed(samples: Samples, factor: float) -> Samples:
    """Plays samples, float32 (T,), faster (1.1 makes 1 s of 1.1 s) or slower, at the same sampling rate.

    Speed perturbation: Ko et al. 2015, "Audio Augmentation for Speech Recognition"; changes tempo and pitch.

    Returns:
        float32 (⌊T / factor⌋,), as in `Speeds.durations_s`.
    """
    length = int(changed_lengths(len(samples), factor))
    if length == len(samples):
        return samples
    changed = np.asarray(soxr.resample(samples, factor, 1.0, quality="HQ"), dtype=np.float32)[:length]
    return np.pad(changed, (0, length - len(changed)))


def changed_lengths(samples: npt.ArrayLike, factors: npt.ArrayLike) -> FloatArray:
    """Returns the numbers of samples of clips at other speeds; each is at least 1."""
    lengths: FloatArray = np.maximum(np.floor(np.asarray(samples) / np.asarray(factors)), 1.0)
    return lengths


class Speeds:
    """The speed factors of the utterances of an index in each epoch.

    `durations_s` are those of the stored clips, shape (N,). A clip that fits into `context_s` never becomes longer.
    """

    def __init__(self, part: AugmentPart, seed: int, durations_s: FloatArray, context_s: float):
        self._part, self._seed = part, seed
        self._samples = np.rint(durations_s * SAMPLING_RATE_HZ)
        # The factor at which a clip exactly fits into the context.
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
        """Returns the durations of some utterances, shape (n,), since a mix draws only a few in some passes."""
        if len(positions) * _COST_OF_ONE > len(self._samples):
            return self.durations_s(epoch)[positions]
        factors = [self.factor(position, epoch) for position in positions.tolist()]
        return changed_lengths(self._samples[positions], factors) / SAMPLING_RATE_HZ

    def longest_s(self) -> FloatArray:
        """Returns the longest duration of each utterance in any epoch, shape (N,)."""
        return changed_lengths(self._samples, np.maximum(self._part.slowest, self._least)) / SAMPLING_RATE_HZ


def read_row(row: Row, reader: RecordingReader) -> Samples:
    """Reads the samples (T,) of a recording, or of a segment of it; mono, at the rate of prepared clips.

    Raises:
        AudioError: The recording does not exist, cannot be decoded, or ends before its segment.
        DataError: Its archive is damaged.
        StorageError: The storage is not available.
    """
    (recording,) = reader.read([row])
    if isinstance(recording, AudioError):
        raise recording
    samples = decode(recording, name=str(row["audio"]))
    # Copied, since a slice would keep the complete recording in memory.
    return (
        samples
        if row["offset_s"] is None
        else segment(samples, SAMPLING_RATE_HZ, row["offset_s"], row["duration_s"]).copy()
    )


class RecordingPool:
    """The recordings of the manifest that a config's field names; each is read when first drawn, and cached."""

    def __init__(self, field: str, rows: LocatedRows):
        self._field, self._table, self._reader = field, rows.table, rows.reader
        self._kept: OrderedDict[int, Samples] = OrderedDict()
        self._kept_bytes = 0

    def draw(self, generator: np.random.Generator) -> Samples:
        """Returns the samples (T,) of a recording, drawn uniformly; mono, at the rate of prepared clips.

        Raises DataError if the recording cannot be read.
        """
        return self._read(int(generator.integers(len(self._table))))

    def _read(self, number: int) -> Samples:
        if number in self._kept:
            self._kept.move_to_end(number)
            return self._kept[number]
        (row,) = self._table.slice(number, 1).to_pylist()
        try:
            samples = read_row(row, self._reader)
        except AudioError as error:
            raise DataError(
                f"{self._field}: {row['audio']}: {error}; fix it, or take it out of the manifest"
            ) from error
        self._kept[number] = samples
        self._kept_bytes += samples.nbytes
        while self._kept_bytes > KEPT_BYTES and len(self._kept) > 1:
            self._kept_bytes -= self._kept.popitem(last=False)[1].nbytes
        return samples


@dataclass(frozen=True)
class Masks:
    """The masks of one clip by SpecAugment (Park et al. 2019): times in seconds, bands as fractions of the bins."""

    duration_s: float
    times_s: tuple[Stretch, ...]
    bands: tuple[Stretch, ...]


class Augmenter:
    """Changes clips of one prepared set; a result depends only on the clip, its position in the index, and the epoch.

    If `speeds`, `noise` or `rirs` (impulse responses) is None, this kind of change is left out.
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
        """Changes a clip, int16 (T,), for training in an epoch; `position` is its position in the index.

        Returns:
            int16 samples, at the speed of `Speeds`; values outside full scale are clipped.

        Raises:
            DataError: A recording of a manifest cannot be read.
        """
        samples: Samples = clip.astype(np.float32) / FULL_SCALE
        if self._speeds is not None:
            samples = change_speed(samples, self._speeds.factor(position, epoch))
        if self.replaces(position, epoch):
            generator = generator_of(self._seed, epoch, Stage.NO_SPEECH, position)
            # The first draw decided that the clip is replaced.
            generator.random()
            return draw_sound(len(samples), generator)
        generator = generator_of(self._seed, epoch, Stage.RIR, position)
        if self._rirs is not None and generator.random() < self._part.rir_probability:
            samples = reverberate(samples, self._rirs.draw(generator))
        generator = generator_of(self._seed, epoch, Stage.NOISE, position)
        if self._noise is not None and generator.random() < self._part.noise_probability:
            low_db, high_db = self._part.noise_snr_db
            samples = add_noise(samples, self._noise.draw(generator), generator.uniform(low_db, high_db), generator)
        if self._part.gain_db is not None:
            low_db, high_db = self._part.gain_db
            gain_db = generator_of(self._seed, epoch, Stage.GAIN, position).uniform(low_db, high_db)
            samples = np.multiply(samples, amplitude(gain_db), dtype=np.float32)
        changed: npt.NDArray[np.int16] = np.clip(np.rint(samples * FULL_SCALE), -32_768, 32_767).astype(np.int16)
        return changed

    def replaces(self, position: int, epoch: int) -> bool:
        """Returns True if a clip is replaced by a sound without speech in an epoch, so that its text is empty."""
        fraction = self._part.no_speech_fraction
        return fraction > 0 and generator_of(self._seed, epoch, Stage.NO_SPEECH, position).random() < fraction

    def masks(self, length: int, position: int, epoch: int) -> Masks | None:
        """Returns the masks of the features of a changed clip of `length` samples; None if masking is off."""
        if not self._part.masks:
            return None
        return draw_masks(self._part, length / SAMPLING_RATE_HZ, generator_of(self._seed, epoch, Stage.MASKS, position))


def amplitude(level_db: float) -> np.float32:
    """Returns the factor of samples that changes their level by `level_db`."""
    return np.float32(10 ** (level_db / 20))


def power(samples: Samples) -> float:
    """Returns the mean square of samples."""
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
    """Draws masks: uniform widths up to the part's maximum, and then uniform positions."""
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
