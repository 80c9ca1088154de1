"""Speed perturbation: what it does to a clip, and which factor a clip gets in which epoch."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainers.config.parts.augment_part import AugmentPart
from trainers.data.audio import SAMPLING_RATE_HZ
from trainers.data.augmentation import Speeds, change_speed, changed_lengths

RANGE = AugmentPart(speed_range=[0.8, 1.25])
FACTORS = AugmentPart(speed_factors=[0.9, 1.0, 1.1])


def tone(hz: float, samples: int = SAMPLING_RATE_HZ) -> np.ndarray:
    return np.sin(2 * np.pi * hz * np.arange(samples) / SAMPLING_RATE_HZ).astype(np.float32)


@pytest.mark.parametrize("factor", [0.5, 0.8, 1.1, 1.25, 2.0])
def test_tempo_and_pitch_change_by_the_factor(factor: float) -> None:
    changed = change_speed(tone(440), factor)
    assert len(changed) == int(SAMPLING_RATE_HZ / factor)
    assert changed.dtype == np.float32
    peak_hz = np.abs(np.fft.rfft(changed)).argmax() * SAMPLING_RATE_HZ / len(changed)
    assert peak_hz == pytest.approx(440 * factor, abs=2)


def test_at_factor_1_nothing_changes() -> None:
    samples = tone(440)
    assert change_speed(samples, 1.0) is samples


@given(st.integers(1, 3000), st.floats(0.5, 2.0))
def test_a_changed_clip_is_as_long_as_planned(length: int, factor: float) -> None:
    assert len(change_speed(tone(300, length), factor)) == changed_lengths(length, factor)


def test_each_epoch_draws_anew_and_again_the_same() -> None:
    durations_s = np.full(500, 2.0)
    first, again = (Speeds(RANGE, 7, durations_s, 30.0) for _ in range(2))
    assert not np.array_equal(first.factors(0), first.factors(1))
    assert np.array_equal(again.factors(1), first.factors(1)), "a resumed run begins in a later epoch"
    assert np.array_equal(first.factors(0), again.factors(0))
    assert not np.array_equal(Speeds(RANGE, 8, durations_s, 30.0).factors(0), first.factors(0))


def test_factors_are_even_over_the_range_or_the_set() -> None:
    durations_s = np.full(3000, 2.0)
    drawn = Speeds(RANGE, 1, durations_s, 30.0).factors(0)
    assert drawn.min() >= 0.8 and drawn.max() <= 1.25
    assert drawn.mean() == pytest.approx(1.025, abs=0.01)
    values, counts = np.unique(Speeds(FACTORS, 1, durations_s, 30.0).factors(0), return_counts=True)
    assert values.tolist() == [0.9, 1.0, 1.1]
    assert counts.min() > 900


@given(st.lists(st.integers(1, 48_000), min_size=1, max_size=50), st.integers(0, 5))
def test_no_clip_becomes_longer_than_the_context(lengths: list[int], epoch: int) -> None:
    speeds = Speeds(AugmentPart(speed_factors=[0.5]), 3, np.asarray(lengths) / SAMPLING_RATE_HZ, 3.0)
    planned_s = speeds.durations_s(epoch)
    assert planned_s.max() <= 3.0
    assert (planned_s <= speeds.longest_s()).all()
    for length, factor, duration_s in zip(lengths, speeds.factors(epoch), planned_s, strict=True):
        assert len(change_speed(np.zeros(length, np.float32), factor)) / SAMPLING_RATE_HZ == duration_s


@pytest.mark.parametrize("part", [RANGE, FACTORS])
def test_one_factor_is_that_of_its_epoch_whether_the_others_are_known_or_not(part: AugmentPart) -> None:
    durations_s = np.random.default_rng(0).uniform(1, 29.9, 5000)
    known, alone = Speeds(part, 7, durations_s, 30.0), Speeds(part, 7, durations_s, 30.0)
    factors, planned_s = known.factors(3), known.durations_s(3)
    positions = np.array([4999, 0, 17])
    assert [alone.factor(position, 3) for position in positions.tolist()] == factors[positions].tolist()
    assert [known.factor(position, 3) for position in positions.tolist()] == factors[positions].tolist()
    assert np.array_equal(alone.durations_of(positions, 3), planned_s[positions])
    assert np.array_equal(alone.durations_of(np.arange(5000), 3), planned_s)
