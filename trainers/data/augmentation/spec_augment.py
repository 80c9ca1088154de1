"""SpecAugment (Park et al. 2019): stretches of time and bands of frequency are masked in a clip's features.

What is drawn is in seconds and in fractions of the bins, and is turned into frames where the features are made.
"""

from dataclasses import dataclass

import numpy as np
import torch

from trainers.config.parts.augment_part import AugmentPart

Stretch = tuple[float, float]


@dataclass(frozen=True)
class Masks:
    """The masks of one clip: stretches of time in seconds, and bands as fractions of the bins."""

    duration_s: float
    times_s: tuple[Stretch, ...]
    bands: tuple[Stretch, ...]


def draw_masks(part: AugmentPart, duration_s: float, generator: np.random.Generator) -> Masks:
    """Draws widths up to the part's, evenly, and then where they lie, evenly."""
    longest_s = min(part.time_mask_s, part.time_mask_fraction * duration_s)
    times_s = tuple(_stretch(generator, longest_s, duration_s) for _ in range(part.time_masks))
    bands = tuple(_stretch(generator, part.frequency_mask_fraction, 1.0) for _ in range(part.frequency_masks))
    return Masks(duration_s, times_s, bands)


def _stretch(generator: np.random.Generator, widest: float, length: float) -> Stretch:
    width = generator.uniform(0, widest)
    start = generator.uniform(0, length - width)
    return start, start + width


def mask_features(features: torch.Tensor, masks: Masks, frames_per_s: float) -> torch.Tensor:
    """Masks features (bins, frames) of one padded clip in place, with the mean over the clip's own frames."""
    bins, frames = features.shape
    own = features[:, : max(1, min(frames, round(masks.duration_s * frames_per_s)))]
    mean = own.mean()
    for start_s, end_s in masks.times_s:
        own[:, round(start_s * frames_per_s) : round(end_s * frames_per_s)] = mean
    for low, high in masks.bands:
        own[round(low * bins) : round(high * bins)] = mean
    return features
