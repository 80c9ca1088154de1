"""Sounds without speech are as many, as long and as loud as they say, and the same each time."""

import numpy as np
import pytest

from trainers.scoring.sounds import SOUNDS


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
