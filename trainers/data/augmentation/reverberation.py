"""Reverberation: a clip as it sounds in a room, by convolution with the room's impulse response."""

import numpy as np

from trainers.data.augmentation.noise import Samples, power


def reverberate(samples: Samples, response: Samples) -> Samples:
    """Convolves a clip with an impulse response.

    The direct path, the response's largest value, stays where it was, so that the clip is neither delayed nor longer;
    its mean power is kept.

    Args:
        samples: float32 (T,).
        response: float32 (R,).

    Returns:
        float32 (T,); the clip as it is where it or the response is silent.
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
