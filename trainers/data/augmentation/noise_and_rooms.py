"""Additive noise at a signal-to-noise ratio, gain, and the sound of a room."""

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


def reverberate(samples: Samples, response: Samples) -> Samples:
    """Convolves a clip, float32 (T,), with an impulse response, float32 (R,).

    The direct path, the response's largest value, stays where it was, so that the clip is neither delayed nor longer;
    its mean power is kept. Where it or the response is silent, the clip stays as it is.
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
