"""Where words begin and end by the sound around their letters. Pure."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from trainers.data.audio import SAMPLING_RATE_HZ

if TYPE_CHECKING:
    from trainers.models.recognizer import Word

MOMENT_S = 0.01
MOMENT_SAMPLES = round(MOMENT_S * SAMPLING_RATE_HZ)
# How far below the loud moments of words one is silent, and up to how far above the quietest of its clip: noise.
SILENCE_DB, NOISE_DB = 40.0, 6.0
LOUD, QUIET = 0.9, 0.05
# Sound further from a word's letters is not of this word. Seconds, as many as a short word takes, all of whose letters
# may be at one of its ends.
REACH_S = 0.4


def reach_to_pauses(words: "Sequence[Word]", samples: npt.NDArray[np.int16]) -> "tuple[Word, ...]":
    """Words of a clip, whose gaps are divided among them by what is heard in each.

    A CTC model is sure of a letter for a moment anywhere within its sound (Zeyer et al. 2021, "Why does CTC result in
    peaky behavior?"), so that a word may be spoken long before its first letter's output and after its last one's. Of
    the gap between two words' letters, the longest pause belongs to neither. Where there is none, they meet in its
    middle, as in ctc-segmentation (Kürzinger et al. 2020). A word gains at most REACH_S on either side, else nothing.

    Args:
        words: In their order, with the times of their letters. Those that follow each other without a gap stay.
        samples: The clip, (T,).
    """
    if not words or not len(samples):
        return tuple(words)
    silent = _silent(words, samples)
    starts_s, ends_s = [word.start_s for word in words], [word.end_s for word in words]
    gaps = zip([0.0, *ends_s], [*starts_s, len(samples) / SAMPLING_RATE_HZ], strict=True)
    for place, (left_s, right_s) in enumerate(gaps):
        if right_s <= left_s:
            continue
        end_s, start_s = _longest_pause(silent, left_s, right_s)
        if place > 0 and end_s - left_s <= REACH_S:
            ends_s[place - 1] = end_s
        if place < len(words) and right_s - start_s <= REACH_S:
            starts_s[place] = start_s
    return tuple(
        word._replace(start_s=start_s, end_s=end_s)
        for word, start_s, end_s in zip(words, starts_s, ends_s, strict=True)
    )


def _silent(words: "Sequence[Word]", samples: npt.NDArray[np.int16]) -> npt.NDArray[np.bool_]:
    """Which moments of a clip are a pause, (moments,)."""
    # In floats, whose squares do not overflow.
    moments = np.pad(samples.astype(np.float32), (0, -len(samples) % MOMENT_SAMPLES)).reshape(-1, MOMENT_SAMPLES)
    power = np.square(moments).mean(axis=1)
    # Words without a length, or beyond the end, are some models' own: the clip speaks for them.
    spoken = np.concatenate([power[int(word.start_s / MOMENT_S) : round(word.end_s / MOMENT_S)] for word in words])
    loud = np.quantile(spoken if len(spoken) else power, LOUD) * 10 ** (-SILENCE_DB / 10)
    return np.asarray(power <= max(loud, np.quantile(power, QUIET) * 10 ** (NOISE_DB / 10)))


def _longest_pause(silent: npt.NDArray[np.bool_], left_s: float, right_s: float) -> tuple[float, float]:
    """Where the longest run of silent moments in a gap begins and ends: without one, its middle twice."""
    first, last = round(left_s / MOMENT_S), round(right_s / MOMENT_S)
    within = np.concatenate([[False], silent[first:last], [False]])
    runs = np.flatnonzero(np.diff(within)).reshape(-1, 2)
    if not len(runs):
        return ((left_s + right_s) / 2,) * 2
    start, end = (first + runs[np.diff(runs)[:, 0].argmax()]).tolist()
    return max(left_s, start * MOMENT_S), min(right_s, end * MOMENT_S)
