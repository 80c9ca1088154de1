"""Noise, gain and reverberation, as signals."""

import numpy as np
import pytest

from trainers.data.augmentation import add_noise, amplitude, power, reverberate

SPEECH = np.random.default_rng(1).normal(0, 0.1, 8000).astype(np.float32)


def rng() -> np.random.Generator:
    return np.random.default_rng(5)


@pytest.mark.parametrize("snr_db", [-5.0, 0.0, 12.5])
@pytest.mark.parametrize("length", [100, 8000, 50_000])
def test_noise_has_the_ratio_that_was_asked_for(snr_db: float, length: int) -> None:
    noise = np.random.default_rng(2).normal(0, 0.7, length).astype(np.float32)
    added = add_noise(SPEECH, noise, snr_db, rng()) - SPEECH
    assert 10 * np.log10(power(SPEECH) / power(added)) == pytest.approx(snr_db, abs=0.01)


def test_noise_is_a_stretch_of_the_recording_or_its_repetition() -> None:
    ramp = np.arange(1, 20_001, dtype=np.float32)
    stretch = add_noise(np.ones(100, np.float32), ramp, 0.0, rng()) - 1
    assert np.diff(stretch) == pytest.approx(np.full(99, stretch[1] - stretch[0]), rel=1e-2), "no seam in a long one"
    short = np.array([1, 2, 3], np.float32)
    repeated = add_noise(np.ones(9, np.float32), short, 0.0, rng()) - 1
    assert repeated[:3] == pytest.approx(repeated[3:6])


def test_silence_stays_as_it_is() -> None:
    silent = np.zeros(100, np.float32)
    assert add_noise(silent, SPEECH, 0.0, rng()) is silent
    assert add_noise(SPEECH, silent, 0.0, rng()) is SPEECH
    assert reverberate(silent, SPEECH) is silent
    assert reverberate(SPEECH, silent) is SPEECH


def test_a_gain_is_in_decibels_of_amplitude() -> None:
    assert power(SPEECH * amplitude(-6.0)) == pytest.approx(power(SPEECH) * 10**-0.6)


def test_a_room_without_echo_changes_nothing() -> None:
    response = np.zeros(4000, np.float32)
    response[700] = -0.4
    assert -reverberate(SPEECH, response) == pytest.approx(SPEECH, abs=1e-6)


def test_a_room_keeps_length_level_and_the_place_of_the_direct_path() -> None:
    click = np.zeros(6000, np.float32)
    click[1000] = 0.5
    response = np.zeros(3000, np.float32)
    response[[200, 900]] = 1.0, 0.5
    wet = reverberate(click, response)
    assert len(wet) == len(click)
    assert np.flatnonzero(np.abs(wet) > 1e-4).tolist() == [1000, 1700]
    assert wet[1700] / wet[1000] == pytest.approx(0.5)
    assert power(wet) == pytest.approx(power(click))


@pytest.mark.parametrize("length", [1, 50, 30_000])
def test_a_response_may_be_shorter_or_longer_than_the_clip(length: int) -> None:
    response = (np.random.default_rng(3).normal(size=length) * np.exp(-np.arange(length) / 500)).astype(np.float32)
    direct = int(np.abs(response).argmax())
    whole = np.convolve(SPEECH.astype(float), response.astype(float))[direct : direct + len(SPEECH)]
    expected = whole * np.sqrt(power(SPEECH) / np.square(whole).mean())
    assert reverberate(SPEECH, response) == pytest.approx(expected, abs=1e-5)
