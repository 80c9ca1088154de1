"""Additive noise at a signal-to-noise ratio, and gain."""

import numpy as np
import numpy.typing as npt

Samples = npt.NDArray[np.float32]


def amplitude(level_db: float) -> np.float32:
    """The factor of samples that changes their level by so many dB."""
    return np.float32(10 ** (level_db / 20))


def power(samples: Samples) -> float:
    """Mean square."""
    return float(np.square(samples, dtype=np.float64).mean())


def add_noise(samples: Samples, noise: Samples, snr_db: float, generator: np.random.Generator) -> Samples:
    """Adds a stretch of a noise recording, repeated where it is shorter than the clip.

    Args:
        samples: float32 (T,).
        noise: float32 (N,).
        snr_db: Mean power of the clip over that of the stretch, dB.
        generator: Draws where the stretch begins.

    Returns:
        float32 (T,); the clip as it is where it or the stretch is silent.
    """
    start = int(generator.integers(max(1, len(noise) - len(samples) + 1) if len(noise) >= len(samples) else len(noise)))
    stretch = np.take(noise, np.arange(start, start + len(samples)), mode="wrap")
    signal_power, noise_power = power(samples), power(stretch)
    if not signal_power or not noise_power:
        return samples
    return samples + stretch * (np.float32(np.sqrt(signal_power / noise_power)) * amplitude(-snr_db))
