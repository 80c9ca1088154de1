"""Where a recording is cut that is longer than the model takes: at pauses, so that no word is cut. Pure."""

import numpy as np
import numpy.typing as npt

# More frames than a recording has.
BEYOND = 2**40
Bools = npt.NDArray[np.bool_]


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
