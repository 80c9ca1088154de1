"""Detects speech in a recording, and splits the recording at pauses."""

import numpy as np
import numpy.typing as npt
import webrtcvad

from trainers.data.audio import SAMPLING_RATE_HZ

FRAME_S = 0.03
FRAME_SAMPLES = round(FRAME_S * SAMPLING_RATE_HZ)
# Window for averaging the power when looking for the quietest frame; longer than the silence within a word.
MOMENT_FRAMES = 9
# How readily sound counts as non-speech, from 0 to 3; the lowest, since losing a word is worse than keeping a pause.
AGGRESSIVENESS = 0
# The highest sample of a frame that counts as silent, 72 dB below full scale.
SILENT_PEAK = 8
# More frames than any recording has.
BEYOND = 2**40
Bools = npt.NDArray[np.bool_]


def cut_recording(samples: npt.NDArray[np.int16], longest_s: float, pause_s: float) -> list[tuple[int, int]]:
    """Returns start and end sample of each segment of a recording (T,), see `cut`.

    A recording that is not longer than the maximum length is one segment, whatever it contains.
    """
    if len(samples) <= longest_s * SAMPLING_RATE_HZ:
        return [(0, len(samples))]
    frames = _frames(samples)
    # Float, since squares would overflow.
    power = np.square(frames.astype(np.float32)).mean(axis=1)
    power = np.convolve(power, np.full(MOMENT_FRAMES, 1 / MOMENT_FRAMES), mode="same")
    longest, pause = int(longest_s / FRAME_S), round(pause_s / FRAME_S)
    found = cut(speech_in(frames), power, longest=longest, pause=pause)
    return [(start * FRAME_SAMPLES, min(end * FRAME_SAMPLES, len(samples))) for start, end in found]


def speech_in(frames: npt.NDArray[np.int16]) -> npt.NDArray[np.bool_]:
    """Returns which frames (F, FRAME_SAMPLES) have speech, shape (F,), by WebRTC's detector.

    The detector adapts to a recording's noise, and may take a pause without noise, as in edited audio, for speech.
    """
    detector = webrtcvad.Vad(AGGRESSIVENESS)
    # int32, since the absolute value of the lowest int16 would overflow.
    peaks = np.abs(frames.astype(np.int32)).max(axis=1)
    return np.array(
        [
            # The detector needs all frames, since it tracks the noise.
            detector.is_speech(frame.tobytes(), SAMPLING_RATE_HZ) and peak > SILENT_PEAK
            for frame, peak in zip(frames, peaks, strict=True)
        ],
        dtype=np.bool_,
    )


def _frames(samples: npt.NDArray[np.int16]) -> npt.NDArray[np.int16]:
    """Splits samples (T,) into frames (F, FRAME_SAMPLES), padded with zeros."""
    padding = -len(samples) % FRAME_SAMPLES
    return np.pad(samples, (0, padding)).reshape(-1, FRAME_SAMPLES)


def cut(speech: Bools, power: npt.NDArray[np.floating], *, longest: int, pause: int) -> list[tuple[int, int]]:
    """Splits the frames of a recording into segments.

    A pause of more than `pause` frames separates two segments. Each keeps `pause` / 2 frames of it, and the rest is
    dropped. A segment that would be too long is split in the second half of its maximum length, at the frame farthest
    from speech or, if there is no pause, at the quietest frame.

    Args:
        speech: True for frames with speech, (F,).
        power: Power of each frame, (F,).
        longest: Maximum number of frames in a segment, at least 4.
        pause: Maximum length of a pause within a segment, in frames.

    Returns:
        Start and end of each segment, ascending. Segments do not overlap, and contain each frame with speech.
    """
    depth = _distance_to(speech)
    segments: list[tuple[int, int]] = []
    kept = np.concatenate([[False], depth <= pause // 2, [False]])
    for start, end in np.flatnonzero(np.diff(kept)).reshape(-1, 2).tolist():
        begin = start
        while end - begin > longest:
            # These bounds keep both parts from becoming too short.
            first, last = begin + longest // 2, min(begin + longest, end - longest // 4)
            place = first + int(np.lexsort((power[first:last], -depth[first:last]))[0])
            segments.append((begin, place))
            begin = place
        segments.append((begin, end))
    return segments


def _distance_to(speech: Bools) -> npt.NDArray[np.int64]:
    """Returns the distance of each frame to the nearest frame with speech, (F,); huge if there is no speech."""
    places = np.arange(len(speech))
    before = np.maximum.accumulate(np.where(speech, places, -BEYOND))
    behind = np.minimum.accumulate(np.where(speech, places, BEYOND)[::-1])[::-1]
    return np.minimum(places - before, behind - places)
