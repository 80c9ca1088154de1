"""Clips are stored as FLAC with the 16 bits of each sample, and a damaged one is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainers.synthetic import speechlike
from trainers.data.audio import SAMPLING_RATE_HZ, decode_flac, encode_flac
from trainers.errors import AudioError


@given(st.lists(st.integers(-32768, 32767), min_size=1, max_size=5000))
def test_sixteen_bits_come_back_as_the_same_sixteen_bits(values: list[int]) -> None:
    integers = np.array(values, dtype=np.int16)
    stored = decode_flac(encode_flac(integers / np.float32(32768), SAMPLING_RATE_HZ))
    assert stored.dtype == np.int16
    np.testing.assert_array_equal(stored, integers)


def test_encoding_rounds_to_nearest_and_clips() -> None:
    samples = np.array([0.4, 0.6, 0.5, 1.5, -0.6, 4e4, -4e4], dtype=np.float32) / 32768
    np.testing.assert_array_equal(decode_flac(encode_flac(samples, 16_000)), [0, 1, 0, 2, -1, 32767, -32768])


def test_a_damaged_stored_clip_is_an_audio_error() -> None:
    clip = encode_flac(speechlike(1.0) / np.float32(32768), SAMPLING_RATE_HZ)
    for damaged in (b"", clip[:20], clip[: len(clip) // 2]):
        with pytest.raises(AudioError, match="prepare the data again"):
            decode_flac(damaged)
