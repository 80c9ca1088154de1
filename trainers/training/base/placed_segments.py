"""Places the words of a transcript in timed segments that a recognizer found. Pure."""

import re
from collections.abc import Sequence
from itertools import groupby

from trainers.models.recognizer import Segment
from trainers.scoring.comparison.matched_pairs import align

# Above this share of errors, segments of a hypothesis say little about where the words of the transcript are.
MOST_ERRORS = 0.5
# Of more consecutive words than this that a hypothesis lacks, it is not known in which segment they are.
MOST_LACKING = 2


def place(transcript: str, segments: Sequence[Segment], *, by_character: bool = False) -> list[Segment] | None:
    """Returns segments with the words of a transcript, given segments with a hypothesis for the same clip.

    Each word goes into the segment of the word of the hypothesis that it is aligned with; a word without one, into that
    of the word before it. Segments that get no word are left out. `by_character` is for languages that are written
    without spaces. Returns None if the hypothesis has more than MOST_ERRORS errors for each word of the transcript, or
    lacks more than MOST_LACKING consecutive words at its start, at its end, or between two segments, such as if it
    stops early.
    """
    words = _units(transcript, by_character=by_character)
    found = [
        (unit, number)
        for number, segment in enumerate(segments)
        for unit in _units(segment.text, by_character=by_character)
    ]
    if not words or not found:
        return None
    owners = _owners([_folded(word) for word in words], [_folded(unit) for unit, _ in found])
    errors = sum(_folded(words[at]) != _folded(found[owner][0]) for at, owner in enumerate(owners) if owner is not None)
    errors += owners.count(None) + len(found) - len({*owners} - {None})
    if errors > MOST_ERRORS * len(words):
        return None
    numbers = [found[owner][1] if owner is not None else None for owner in owners]
    if _lacks_words_at_an_edge(numbers):
        return None
    texts: list[list[str]] = [[] for _ in segments]
    current = next((number for number in numbers if number is not None), 0)
    for word, number in zip(words, numbers, strict=True):
        current = number if number is not None else current
        texts[current].append(word)
    joiner = "" if by_character else " "
    placed = [each._replace(text=joiner.join(own)) for each, own in zip(segments, texts, strict=True) if own]
    return [each for each in placed if each.text.strip()]


def _lacks_words_at_an_edge(numbers: Sequence[int | None]) -> bool:
    """Returns True if more than MOST_LACKING words in a row without a segment are not within one segment."""
    runs = [(number, len([*run])) for number, run in groupby(numbers)]
    padded = [(None, 0), *runs, (None, 0)]
    return any(
        number is None and length > MOST_LACKING and (before is None or before != after)
        for (before, _), (number, length), (after, _) in zip(padded, padded[1:], padded[2:], strict=False)
    )


def _units(text: str, *, by_character: bool) -> list[str]:
    return [*text] if by_character else text.split()


def _folded(word: str) -> str:
    """Returns a word without case and punctuation, which segments of a hypothesis often have otherwise."""
    return re.sub(r"[^\w]", "", word).casefold() or word


def _owners(reference: Sequence[str], hypothesis: Sequence[str]) -> list[int | None]:
    """Returns, for each word of the reference, the position of the word of the hypothesis that it is aligned with."""
    owners: list[int | None] = []
    position = 0
    for word, other in align(reference, hypothesis):
        if word is not None:
            owners.append(position if other is not None else None)
        position += other is not None
    return owners
