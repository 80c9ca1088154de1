"""Words of a transcript are placed in the segments of a hypothesis."""

import pytest

from trainers.models.recognizer import Segment
from trainers.training.base.placed_segments import place

TWO = [Segment("The cat sat,", 0.0, 1.5), Segment("on a mat.", 2.0, 3.5)]


@pytest.mark.parametrize(
    ("transcript", "texts"),
    [
        ("the cat sat on a mat", ["the cat sat", "on a mat"]),
        ("The cat sat on the mat", ["The cat sat", "on the mat"]),
        ("the black cat sat on a mat", ["the black cat sat", "on a mat"]),
        ("cat sat on a mat", ["cat sat", "on a mat"]),
        # A word that the hypothesis lacks stays with the one before it.
        ("the cat sat down on a mat", ["the cat sat down", "on a mat"]),
        ("well the cat sat on a mat", ["well the cat sat", "on a mat"]),
    ],
)
def test_each_word_is_in_its_segment(transcript: str, texts: list[str]) -> None:
    placed = place(transcript, TWO)
    assert placed is not None
    assert [each.text for each in placed] == texts
    assert [(each.start_s, each.end_s) for each in placed] == [(0.0, 1.5), (2.0, 3.5)]


def test_no_word_is_lost_or_doubled() -> None:
    placed = place("one two three four five", [Segment("one", 0, 1), Segment("three four", 1, 2), Segment("six", 2, 3)])
    assert placed is not None
    assert " ".join(each.text for each in placed) == "one two three four five"


def test_a_segment_without_words_is_left_out() -> None:
    placed = place("one two three four", [Segment("one two", 0, 1), Segment("uh", 1, 2), Segment("three four", 2, 3)])
    assert placed == [Segment("one two", 0, 1), Segment("three four", 2, 3)]


@pytest.mark.parametrize(
    ("transcript", "hypothesis"),
    [("one two three", "something else entirely"), ("one two", ""), ("", "one two"), ("one", "one two three")],
)
def test_another_text_is_not_placed(transcript: str, hypothesis: str) -> None:
    assert place(transcript, [Segment(hypothesis, 0.0, 2.0)]) is None


@pytest.mark.parametrize(
    ("hypothesis", "is_placed"),
    [
        (["one two three four", "five six"], False),
        (["five six seven", "eight nine"], False),
        (["one two three", "seven eight nine"], False),
        (["one two three", "four eight nine"], True),
        (["one two three four five", "six seven"], True),
    ],
)
def test_words_that_a_hypothesis_lacks_are_within_a_segment_or_few(hypothesis: list[str], *, is_placed: bool) -> None:
    segments = [Segment(text, at, at + 1) for at, text in enumerate(hypothesis)]
    assert (place("one two three four five six seven eight nine", segments) is not None) is is_placed


def test_languages_without_spaces_are_placed_by_characters() -> None:
    placed = place("今日は天気です", [Segment("今日は", 0, 1), Segment("天気です", 1, 2)], by_character=True)
    assert placed == [Segment("今日は", 0, 1), Segment("天気です", 1, 2)]
