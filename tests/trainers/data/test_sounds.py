"""Sounds without speech are as many, as long and as loud as they say, and the same each time."""

import numpy as np
import pytest

from trainers.data.sounds import SOUNDS, draw_sound


@pytest.mark.parametrize("name", SOUNDS)
def test_a_set_has_twenty_different_sounds_of_5_to_60_seconds(name: str) -> None:
    sounds = SOUNDS[name]()
    assert len(sounds) >= 20
    assert len({sound.id for sound in sounds}) == len(sounds)
    assert {min(sound.duration_s for sound in sounds), max(sound.duration_s for sound in sounds)} == {5.0, 60.0}
    again = SOUNDS[name]()
    assert all((one.samples == other.samples).all() for one, other in zip(sounds, again, strict=True))


def test_silence_is_below_60_db_and_noise_is_heard() -> None:
    def peaks_db(name: str) -> list[float]:
        peaks = [np.abs(sound.samples.astype(float)).max() / 32767 for sound in SOUNDS[name]()]
        return [20 * np.log10(peak) if peak else -np.inf for peak in peaks]

    assert max(peaks_db("silence")) < -59
    assert -np.inf in peaks_db("silence")
    assert -41 < min(peaks_db("noise")) <= max(peaks_db("noise")) < -9


@pytest.mark.parametrize("count", [1, 160, 16_000, 16_001, 80_000])
def test_drawn_sounds_have_the_length_of_the_clip_and_stay_in_scale(count: int) -> None:
    generator = np.random.default_rng(0)
    drawn = [draw_sound(count, generator) for _ in range(30)]
    assert {len(each) for each in drawn} == {count}
    assert {each.dtype for each in drawn} == {np.dtype(np.int16)}
    peaks = {int(np.abs(each.astype(np.int32)).max()) for each in drawn}
    assert 0 in peaks and max(peaks) > 1000
    assert max(peaks) <= 32767 * 10 ** (-10 / 20) + 1
