"""SpecAugment: what is masked, and with what."""

import numpy as np
import pytest
import torch

from trainers.config.parts.augment_part import AugmentPart
from trainers.data.augmentation import Masks, draw_masks, mask_features

PART = AugmentPart(
    time_masks=2, time_mask_s=0.3, time_mask_fraction=0.2, frequency_masks=3, frequency_mask_fraction=0.25
)


def test_stretches_and_bands_are_no_wider_than_allowed_and_inside() -> None:
    generator = np.random.default_rng(0)
    for duration_s, longest_s in ((0.5, 0.1), (10.0, 0.3)):
        drawn = [draw_masks(PART, duration_s, generator) for _ in range(300)]
        assert {(len(masks.times_s), len(masks.bands)) for masks in drawn} == {(2, 3)}
        times = np.array([masks.times_s for masks in drawn])
        bands = np.array([masks.bands for masks in drawn])
        assert times.min() >= 0 and times.max() <= duration_s
        assert bands.min() >= 0 and bands.max() <= 1
        widths_s = times[..., 1] - times[..., 0]
        assert 0.95 * longest_s < widths_s.max() <= longest_s + 1e-9
        assert widths_s.mean() == pytest.approx(longest_s / 2, rel=0.1)
        assert 0.95 * 0.25 < (bands[..., 1] - bands[..., 0]).max() <= 0.25 + 1e-9


def test_masked_frames_and_bins_have_the_clip_s_mean_and_padding_stays() -> None:
    features = torch.arange(40, dtype=torch.float32).reshape(4, 10)
    before = features.clone()
    # 0.8 s of 1 s at ten frames a second.
    masks = Masks(0.8, times_s=((0.2, 0.4),), bands=((0.25, 0.5),))
    mean = before[:, :8].mean()
    assert mask_features(features, masks, 10.0) is features
    expected = before.clone()
    expected[:, 2:4] = mean
    expected[1, :8] = mean
    assert torch.equal(features, expected)


def test_a_mask_is_in_the_same_place_whatever_the_clip_is_padded_to() -> None:
    clip = torch.randn(8, 100)
    masks = draw_masks(PART, 1.0, np.random.default_rng(4))
    short = mask_features(clip.clone(), masks, 100.0)
    long = mask_features(torch.cat([clip, torch.zeros(8, 50)], dim=1), masks, 100.0)
    assert torch.equal(long[:, 100:], torch.zeros(8, 50))
    assert torch.allclose(long[:, :100], short)
