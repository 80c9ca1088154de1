"""Sounds without speech, in which a recognizer should find no words: silence, and noise and synthetic music. Pure.

They are made by numpy's PCG64 with fixed seeds, so that scores of two models are comparable.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np
import numpy.typing as npt

from trainers.data.audio import SAMPLING_RATE_HZ

SEED = 0
# Durations in seconds, which each kind of sound has in turn.
DURATIONS_S = (5.0, 8.0, 12.0, 20.0, 29.0, 40.0, 60.0)
# Peak of full scale is 1; -40 dB is a quiet room, -10 dB is loud.
_LEVELS_DB = (-40.0, -25.0, -10.0)
_CHORDS = ((0, 4, 7), (9, 12, 16), (5, 9, 12), (7, 11, 14))
_A3_HZ = 220.0

Samples = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Sound:
    """A sound: int16 samples, shape (T,), at 16 kHz."""

    id: str
    samples: npt.NDArray[np.int16]

    @property
    def duration_s(self) -> float:
        return len(self.samples) / SAMPLING_RATE_HZ


def _times(count: int) -> Samples:
    return np.arange(count) / SAMPLING_RATE_HZ


def _colored(count: int, generator: np.random.Generator, exponent: float) -> Samples:
    """Returns noise whose power falls with frequency to this exponent: 0 is white, 1 pink, 2 brown."""
    spectrum = np.fft.rfft(generator.normal(size=count))
    frequencies = np.fft.rfftfreq(count, 1 / SAMPLING_RATE_HZ)
    # Constant below 20 Hz, which nobody hears.
    colored: Samples = np.fft.irfft(spectrum / np.maximum(frequencies, 20.0) ** (exponent / 2), count)
    return colored


def _room(count: int, generator: np.random.Generator) -> Samples:
    """Returns brown noise with a few knocks."""
    room = _colored(count, generator, 2)
    room /= np.abs(room).max()
    decay = np.exp(-_times(SAMPLING_RATE_HZ // 10) / 0.02)
    for start in generator.integers(0, count - len(decay), max(1, count // (4 * SAMPLING_RATE_HZ))):
        room[start : start + len(decay)] += 2 * decay * generator.normal(size=len(decay))
    return room


def _hum(count: int, generator: np.random.Generator) -> Samples:
    """Returns hum of mains with its overtones."""
    mains_hz, time_s = generator.choice((50.0, 60.0)), _times(count)
    hum: Samples = sum((np.sin(2 * np.pi * mains_hz * k * time_s) / k for k in range(1, 9)), np.zeros(count))
    return hum + 0.02 * generator.normal(size=count)


def _music(count: int, generator: np.random.Generator) -> Samples:
    """Returns broken chords of plucked notes with overtones, over a bass."""
    music, step = np.zeros(count), round(generator.uniform(0.18, 0.4) * SAMPLING_RATE_HZ)
    time_s = _times(4 * step)

    @cache
    def note(semitones: int) -> Samples:
        note_hz = _A3_HZ * 2 ** (semitones / 12)
        tones = sum((np.sin(2 * np.pi * note_hz * k * time_s) / k**1.5 for k in range(1, 6)), np.zeros(len(time_s)))
        decaying: Samples = tones * np.exp(-time_s / 0.35)
        return decaying

    for number, start in enumerate(range(0, count, step)):
        chord = _CHORDS[number // 8 % len(_CHORDS)]
        played = note(chord[number % 3])
        if number % 4 == 0:
            played = played + 0.5 * note(chord[0] - 12)
        part = music[start : start + len(time_s)]
        part += played[: len(part)]
    return music


_KINDS: Mapping[str, Callable[[int, np.random.Generator], Samples]] = {
    "white": lambda count, generator: _colored(count, generator, 0),
    "pink": lambda count, generator: _colored(count, generator, 1),
    "room": _room,
    "hum": _hum,
    "music": _music,
}


def _at_level(samples: Samples, level_db: float) -> npt.NDArray[np.int16]:
    scaled = samples / np.abs(samples).max() * 10 ** (level_db / 20)
    rounded: npt.NDArray[np.int16] = np.rint(scaled * 32767).astype(np.int16)
    return rounded


def draw_sound(count: int, generator: np.random.Generator) -> npt.NDArray[np.int16]:
    """Returns a sound of `count` samples, of a kind and at a level (-60 to -10 dB) that are drawn, or digital silence.

    For training; no generator of a training draws the sounds of `silence` and `noise`, which have other seeds.
    """
    # A knock in a room takes a tenth of a second.
    kinds = [None, *_KINDS] if count > SAMPLING_RATE_HZ else [None, "white", "pink"]
    kind = kinds[int(generator.integers(len(kinds)))]
    if kind is None:
        return np.zeros(count, np.int16)
    return _at_level(_KINDS[kind](count, generator), generator.uniform(-60.0, -10.0))


def silence() -> list[Sound]:
    """Returns digital silence, and the noise of a quiet recorder (-90 to -60 dB), of each duration."""
    generator, sounds = np.random.default_rng(SEED), []
    for number, duration_s in enumerate(DURATIONS_S * 3):
        count = round(duration_s * SAMPLING_RATE_HZ)
        level_db = (-np.inf, -90.0, -60.0)[number // len(DURATIONS_S)]
        noise = _at_level(_colored(count, generator, 1), level_db)
        sounds.append(Sound(f"silence-{number}", noise))
    return sounds


def noise() -> list[Sound]:
    """Returns noise and music of each kind and level, of different durations."""
    generator, sounds = np.random.default_rng(SEED + 1), []
    kinds = (*_KINDS, "music", "music")
    for number, (level_db, kind) in enumerate(product(_LEVELS_DB, kinds)):
        count = round(DURATIONS_S[number % len(DURATIONS_S)] * SAMPLING_RATE_HZ)
        sounds.append(Sound(f"{kind}-{number}", _at_level(_KINDS[kind](count, generator), level_db)))
    return sounds


# Sets of sounds by the name of their guard.
SOUNDS: Mapping[str, Callable[[], list[Sound]]] = {"silence": silence, "noise": noise}
