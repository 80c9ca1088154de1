"""Where recordings are cut: no speech is lost, no segment is too long, and cuts are in pauses where there are any."""

from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from trainers.data.audio import SAMPLING_RATE_HZ
from trainers.pipeline.transcription.voice_activity import FRAME_SAMPLES, cut, cut_recording

# Runs of speech and of silence, in turn.
RUNS = st.lists(st.integers(1, 60), min_size=1, max_size=12)


def speech_of(runs: list[int], *, begins: bool) -> np.ndarray:
    return np.concatenate([np.full(run, begins == (number % 2 == 0)) for number, run in enumerate(runs)])


@given(RUNS, st.booleans(), st.integers(4, 80), st.integers(0, 30), st.integers(0, 2**32 - 1))
def test_each_frame_is_in_one_segment_or_in_silence(
    runs: list[int], begins: bool, longest: int, pause: int, seed: int
) -> None:
    speech = speech_of(runs, begins=begins)
    power = np.random.default_rng(seed).random(len(speech))
    found = cut(speech, power, longest=longest, pause=pause)
    times = np.zeros(len(speech), int)
    for start, end in found:
        assert 0 < end - start <= longest
        times[start:end] += 1
    assert times.max(initial=0) <= 1
    assert not speech[times == 0].any(), "speech that is in no segment"
    assert found == sorted(found)


@given(RUNS, st.booleans(), st.integers(4, 80), st.integers(0, 30))
def test_a_segment_keeps_half_of_a_pause_and_no_more(runs: list[int], begins: bool, longest: int, pause: int) -> None:
    speech = speech_of(runs, begins=begins)
    kept = np.zeros(len(speech), bool)
    for start, end in cut(speech, np.ones(len(speech)), longest=longest, pause=pause):
        kept[start:end] = True
    places = np.flatnonzero(speech)
    near = [len(places) > 0 and int(np.abs(places - place).min()) <= pause // 2 for place in range(len(speech))]
    assert kept.tolist() == near


def test_pauses_of_the_given_length_separate_and_shorter_ones_do_not() -> None:
    speech = np.array([1] * 10 + [0] * 6 + [1] * 10 + [0] * 5 + [1] * 10, bool)
    assert cut(speech, np.ones(41), longest=100, pause=4) == [(0, 12), (14, 28), (29, 41)]
    assert cut(speech, np.ones(41), longest=100, pause=6) == [(0, 41)]


def test_one_that_is_too_long_is_cut_in_the_middle_of_its_longest_pause_within_reach() -> None:
    speech = np.array([1] * 12 + [0] * 3 + [1] * 3 + [0] * 1 + [1] * 9, bool)
    assert cut(speech, np.ones(28), longest=20, pause=8) == [(0, 13), (13, 28)]


def test_where_nobody_pauses_it_is_cut_where_it_is_quietest() -> None:
    power = np.ones(30)
    power[17] = 0.1
    assert cut(np.ones(30, bool), power, longest=20, pause=8) == [(0, 17), (17, 30)]


def noise(seconds: float, level: float, seed: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    return np.rint(generator.normal(0, level, round(seconds * SAMPLING_RATE_HZ))).astype(np.int16)


@given(st.lists(st.tuples(st.floats(0.1, 3.0), st.floats(0.0, 2.0)), min_size=1, max_size=5), st.integers(0, 99))
def test_each_sample_that_is_loud_is_in_one_segment(parts: list[tuple[float, float]], seed: int) -> None:
    """Loud noise is speech to the detector; what it calls silence is silent."""
    samples = np.concatenate(
        [each for loud, quiet in parts for each in (noise(loud, 3000, seed), noise(quiet, 0.3, seed))]
    )
    found = cut_recording(samples, 2.0, 0.5)
    times = np.zeros(len(samples), int)
    for start, end in found:
        assert end - start <= 2.0 * SAMPLING_RATE_HZ or len(found) == 1
        assert start % FRAME_SAMPLES == 0
        times[start:end] += 1
    assert times.max() <= 1
    assert np.abs(samples[times == 0]).max(initial=0) < 100


def test_a_recording_that_is_not_too_long_is_one_piece_whatever_is_in_it() -> None:
    silence = np.zeros(2 * SAMPLING_RATE_HZ, np.int16)
    assert cut_recording(silence, 2.0, 0.5) == [(0, len(silence))]
    assert cut_recording(np.zeros(len(silence) + 1, np.int16), 2.0, 0.5) == []


def energy(samples: np.ndarray) -> float:
    return float(np.square(samples.astype(np.float64)).sum())


@pytest.mark.integration
def test_no_sentence_of_half_an_hour_is_lost_or_cut_where_it_is_loud(speech_data: Path) -> None:
    """All sentences of eight readers, three times, with pauses between them."""
    draws = np.random.default_rng(0)
    paths = sorted((speech_data / "librispeech_mini").rglob("*.flac")) * 3
    sentences = [soundfile.read(path, dtype="int16")[0] for path in paths]
    pauses = [np.zeros(int(draws.uniform(0.6, 2.0) * SAMPLING_RATE_HZ), np.int16) for _ in sentences]
    recording = np.concatenate([part for pair in zip(sentences, pauses, strict=True) for part in pair])
    assert len(recording) > 30 * 60 * SAMPLING_RATE_HZ
    segments = cut_recording(recording, 30.0, 0.5)
    assert max(end - start for start, end in segments) <= 30 * SAMPLING_RATE_HZ
    lost = recording.copy()
    for start, end in segments:
        lost[start:end] = 0
    cuts = np.array(sorted({end for _, end in segments} & {start for start, _ in segments}), int)
    begin = 0
    for sentence, pause in zip(sentences, pauses, strict=True):
        end = begin + len(sentence)
        assert energy(lost[begin:end]) < 0.002 * energy(sentence), "a word is in no segment"
        for place in cuts[(begin < cuts) & (cuts < end)]:
            around = recording[place - 800 : place + 800]
            assert energy(around) / len(around) < 0.1 * energy(sentence) / len(sentence), "a word is cut"
        begin = end + len(pause)
