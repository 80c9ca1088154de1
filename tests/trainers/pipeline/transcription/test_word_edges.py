"""Words reach as far as what is heard around their letters, where these are anywhere within."""

import numpy as np
import pytest

from trainers.data.audio import SAMPLING_RATE_HZ
from trainers.models.recognizer import Word
from trainers.pipeline.transcription.transcriber import MOMENT_S, REACH_S, reach_to_pauses


def clip(*sounds: tuple[float, float], duration_s: float = 2.0, noise: float = 0.0) -> np.ndarray:
    """Samples (T,) with a tone in each of some spans of seconds, in noise of a standard deviation."""
    times = np.arange(round(duration_s * SAMPLING_RATE_HZ)) / SAMPLING_RATE_HZ
    loud = np.any([(times >= start) & (times < end) for start, end in sounds], axis=0)
    noises = np.random.default_rng(0).normal(0, noise, len(times))
    samples: np.ndarray = np.rint(loud * 8000 * np.sin(2 * np.pi * 200 * times) + noises).astype(np.int16)
    return samples


@pytest.mark.parametrize("noise", [0.0, 20.0, 800.0])
@pytest.mark.parametrize(
    ("letters", "edges"),
    [
        # All at the end of the sound, or at its beginning.
        ([(0.68, 0.70), (1.20, 1.22)], [(0.4, 0.7), (1.2, 1.5)]),
        # Letters that are further out than the sound stay.
        ([(0.40, 0.70), (1.10, 1.60)], [(0.4, 0.7), (1.1, 1.6)]),
    ],
)
def test_a_word_reaches_to_the_pauses_next_to_it(
    letters: list[tuple[float, float]], edges: list[tuple[float, float]], noise: float
) -> None:
    found = reach_to_pauses([Word("a", *times) for times in letters], clip((0.4, 0.7), (1.2, 1.5), noise=noise))
    assert [word[1:] for word in found] == [pytest.approx(times, abs=1.5 * MOMENT_S) for times in edges]


def test_words_without_a_pause_between_them_meet_in_the_middle_of_their_letters() -> None:
    one, other = reach_to_pauses([Word("a", 0.5, 0.6), Word("b", 0.8, 0.9)], clip((0.4, 1.0)))
    assert one[1:] == pytest.approx((0.4, 0.7), abs=MOMENT_S)
    assert other[1:] == pytest.approx((0.7, 1.0), abs=MOMENT_S)


def test_a_stop_within_a_word_is_shorter_than_the_pause_behind_it() -> None:
    eight, six = reach_to_pauses(
        [Word("eight", 0.5, 0.6), Word("six", 1.0, 1.2)], clip((0.4, 0.6), (0.68, 0.72), (0.9, 1.2))
    )
    assert (eight.end_s, six.start_s) == pytest.approx((0.72, 0.9), abs=MOMENT_S)


def test_sound_that_is_too_long_for_a_word_is_not_its_own() -> None:
    words = (Word("a", 0.1 + 1.5 * REACH_S, 0.8), Word("b", 0.82 + 2 * REACH_S, 1.7))
    assert reach_to_pauses(words, clip((0.1, 1.7 + 1.5 * REACH_S), duration_s=3.0)) == words


@pytest.mark.parametrize("samples", [clip(), clip((0.0, 2.0)), clip(noise=300.0)], ids=["silence", "tone", "noise"])
def test_what_is_the_same_everywhere_has_no_pauses(samples: np.ndarray) -> None:
    words = (Word("a", 0.7, 0.9), Word("b", 0.9, 1.1))
    assert reach_to_pauses(words, samples) == words


def test_no_words_stay_none() -> None:
    assert reach_to_pauses((), clip()) == ()


def test_words_behind_the_end_of_a_clip_stay() -> None:
    words = (Word("a", 1.98, 2.02),)
    assert reach_to_pauses(words, clip((1.98, 2.0))) == words


@pytest.mark.parametrize("word", [Word("a", 0.5, 0.5), Word("a", 2.5, 2.6)], ids=["without a length", "beyond"])
def test_words_that_no_sound_is_in_stay_within_reach(word: Word) -> None:
    (found,) = reach_to_pauses((word,), clip((0.4, 0.6)))
    assert word.start_s - REACH_S <= found.start_s <= found.end_s <= word.end_s + REACH_S
    assert reach_to_pauses((word,), clip(duration_s=0.0)) == (word,)
