"""Segments of Whisper's tokens of timestamps."""

from collections.abc import Sequence

import pytest

from trainers.models.recognizer import Segment
from trainers.models.whisper.timestamps import segments_in

FIRST = 1000


def decode(ids: Sequence[int]) -> str:
    return " ".join(map(str, ids)) if [*ids] != [99] else ""


@pytest.mark.parametrize(
    ("tokens", "segments"),
    [
        ([1000, 1, 2, 1050], [Segment("1 2", 0.0, 1.0)]),
        ([1000, 1, 1050, 1050, 2, 1100], [Segment("1", 0.0, 1.0), Segment("2", 1.0, 2.0)]),
        ([1010, 1, 1050, 1075, 2, 1100], [Segment("1", 0.2, 1.0), Segment("2", 1.5, 2.0)]),
        ([], []),
        ([1000], []),
        # A segment without text.
        ([1000, 99, 1050], []),
    ],
)
def test_segments_are_between_two_timestamps(tokens: Sequence[int], segments: Sequence[Segment]) -> None:
    found = segments_in(tokens, FIRST, decode)
    assert found is not None
    assert [each.text for each in found] == [each.text for each in segments]
    for each, wanted in zip(found, segments, strict=True):
        assert (each.start_s, each.end_s) == pytest.approx((wanted.start_s, wanted.end_s))


def test_a_segment_that_does_not_end_has_no_times() -> None:
    assert segments_in([1000, 1, 1050, 1050, 2], FIRST, decode) is None
