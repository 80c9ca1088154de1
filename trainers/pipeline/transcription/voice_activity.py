"""Which parts of a recording have speech, and how it is cut by that."""

import numpy as np
import numpy.typing as npt
import webrtcvad

from trainers.data.audio import SAMPLING_RATE_HZ

FRAME_S = 0.03
FRAME_SAMPLES = round(FRAME_S * SAMPLING_RATE_HZ)
# What is averaged where the quietest moment is looked for: longer than the stop within a word.
MOMENT_FRAMES = 9
# Of 0 to 3, how readily sound is taken for no speech: a word is worth more than a pause.
AGGRESSIVENESS = 0
# The highest sample of a frame in which nothing is heard, 72 dB below full scale.
SILENT_PEAK = 8
# More frames than a recording has.
BEYOND = 2**40
Bools = npt.NDArray[np.bool_]


def cut_recording(samples: npt.NDArray[np.int16], longest_s: float, pause_s: float) -> list[tuple[int, int]]:
    """First sample of each segment of a recording (T,), and the one behind its last; see `cut`.

    A recording that is no longer than a segment may be is one, whatever is in it.
    """
    if len(samples) <= longest_s * SAMPLING_RATE_HZ:
        return [(0, len(samples))]
    frames = _frames(samples)
    # From here on in floats, whose squares do not overflow.
    power = np.square(frames.astype(np.float32)).mean(axis=1)
    power = np.convolve(power, np.full(MOMENT_FRAMES, 1 / MOMENT_FRAMES), mode="same")
    longest, pause = int(longest_s / FRAME_S), round(pause_s / FRAME_S)
    found = cut(speech_in(frames), power, longest=longest, pause=pause)
    return [(start * FRAME_SAMPLES, min(end * FRAME_SAMPLES, len(samples))) for start, end in found]


def speech_in(frames: npt.NDArray[np.int16]) -> npt.NDArray[np.bool_]:
    """Which frames (F, FRAME_SAMPLES) have speech, (F,), by the detector of WebRTC.

    It adapts to the noise of a recording, and may take a pause for speech that has none, as an edited one has.
    """
    detector = webrtcvad.Vad(AGGRESSIVENESS)
    # Absolute values as int32, since that of the lowest int16 is none.
    peaks = np.abs(frames.astype(np.int32)).max(axis=1)
    return np.array(
        [
            # The detector hears all of them, since it follows the noise.
            detector.is_speech(frame.tobytes(), SAMPLING_RATE_HZ) and peak > SILENT_PEAK
            for frame, peak in zip(frames, peaks, strict=True)
        ],
        dtype=np.bool_,
    )


def _frames(samples: npt.NDArray[np.int16]) -> npt.NDArray[np.int16]:
    """Samples (T,) in frames (F, FRAME_SAMPLES), zeros behind the last."""
    padding = -len(samples) % FRAME_SAMPLES
    return np.pad(samples, (0, padding)).reshape(-1, FRAME_SAMPLES)


def cut(speech: Bools, power: npt.NDArray[np.floating], *, longest: int, pause: int) -> list[tuple[int, int]]:
    """Cuts the frames of a recording into segments.

    A pause of more than `pause` frames separates two segments, which keep half of that on either side; the rest is left
    out. A segment that would be too long is cut within its second half where it is deepest in a shorter pause, or where
    there is none, at its quietest frame.

    Args:
        speech: Which frames have speech, (F,).
        power: How loud each is, (F,).
        longest: The most frames of a segment, at least 4.
        pause: See above.

    Returns:
        Start and end of each, ascending. No two share a frame, and each frame with speech is in one.
    """
    depth = _distance_to(speech)
    segments: list[tuple[int, int]] = []
    kept = np.concatenate([[False], depth <= pause // 2, [False]])
    for start, end in np.flatnonzero(np.diff(kept)).reshape(-1, 2).tolist():
        begin = start
        while end - begin > longest:
            # Neither part becomes a sliver.
            first, last = begin + longest // 2, min(begin + longest, end - longest // 4)
            place = first + int(np.lexsort((power[first:last], -depth[first:last]))[0])
            segments.append((begin, place))
            begin = place
        segments.append((begin, end))
    return segments


def _distance_to(speech: Bools) -> npt.NDArray[np.int64]:
    """Frames from each to the nearest with speech, (F,); beyond all where there is none."""
    places = np.arange(len(speech))
    before = np.maximum.accumulate(np.where(speech, places, -BEYOND))
    behind = np.minimum.accumulate(np.where(speech, places, BEYOND)[::-1])[::-1]
    return np.minimum(places - before, behind - places)
