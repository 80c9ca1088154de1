"""Reports on the transcripts of a prepared set, which show wrong pairs of text and audio first. Pure."""

import heapq
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from trainers.config.wording import counted

# Maximum number of examples of each kind.
SHOWN = 20
# A character in fewer clips of a set is more likely an error than a letter.
RARE = 3
# Scripts with similar letters, which keyboards mix within words. Japanese has several scripts in each sentence.
ALIKE = frozenset({"LATIN", "CYRILLIC", "GREEK", "ARMENIAN"})


@dataclass(frozen=True)
class Paced:
    """A clip with its number of characters per second of audio."""

    characters_per_s: float
    id: str
    text: str


@dataclass(frozen=True)
class TextReport:
    """Statistics of a set's transcripts.

    Attributes:
        characters: Frequency of each character, the most frequent first.
        rare: Characters in fewer than RARE clips, with the first such clip.
        mixed: Words with letters of several similar scripts, with the first clip of each.
        empty: Clips without a text.
        fastest: The SHOWN clips with the longest text for their audio; texts of longer clips appear here.
        slowest: The SHOWN clips with the shortest text for their audio, without empty texts.
    """

    characters: Counter[str]
    rare: dict[str, str] = field(default_factory=dict)
    mixed: dict[str, str] = field(default_factory=dict)
    empty: int = 0
    fastest: Sequence[Paced] = ()
    slowest: Sequence[Paced] = ()

    @classmethod
    def of(cls, ids: Sequence[str], texts: Sequence[str], durations_s: Sequence[float]) -> "TextReport":
        """Computes the report for clips, whose durations must be more than 0."""
        characters: Counter[str] = Counter()
        clips: Counter[str] = Counter()
        first: dict[str, str] = {}
        mixed: dict[str, str] = {}
        for id_, text in zip(ids, texts, strict=True):
            characters.update(text)
            used = set(text)
            clips.update(used)
            for character in used - first.keys():
                first[character] = id_
            # Most texts are in one script, and their words need no check.
            if len(scripts_of(text)) > 1:
                mixed |= {word: id_ for word in text.split() if word not in mixed and len(scripts_of(word)) > 1}
        rare = {character: first[character] for character, count in sorted(clips.items()) if count < RARE}
        every = zip(ids, texts, durations_s, strict=True)
        paced = [Paced(len(text) / duration_s, id_, text) for id_, text, duration_s in every if text]
        pace = attrgetter("characters_per_s")
        fastest, slowest = heapq.nlargest(SHOWN, paced, key=pace), heapq.nsmallest(SHOWN, paced, key=pace)
        ordered = Counter(dict(characters.most_common()))
        return cls(ordered, rare, mixed, len(texts) - len(paced), fastest, slowest)

    def lines(self) -> Iterator[str]:
        """Yields the report's lines, for printing."""
        yield f"characters ({len(self.characters)}): " + " ".join(
            f"{named(character)} {count}" for character, count in self.characters.items()
        )
        if self.empty:
            yield f"{counted(self.empty, 'clip')} without text"
        for what, found in (
            (f"characters in fewer than {RARE} clips", {named(key): value for key, value in self.rare.items()}),
            ("words with letters of several scripts", self.mixed),
        ):
            if found:
                shown = ", ".join(f"{key} ({id_})" for key, id_ in list(found.items())[:SHOWN])
                yield f"{len(found)} {what}: {shown}" + (", …" if len(found) > SHOWN else "")
        for what, clips in (("longest", self.fastest), ("shortest", self.slowest)):
            yield f"{what} texts for their audio, characters/s:"
            yield from (f"  {clip.characters_per_s:6.1f}  {clip.id}  {clip.text}" for clip in clips)


def scripts_of(text: str) -> frozenset[str]:
    """Returns the scripts of ALIKE to which letters of a text belong."""
    names = (unicodedata.name(character, "").partition(" ")[0] for character in text if character.isalpha())
    return ALIKE & set(names)


def named(character: str) -> str:
    """Returns a character for display, or its code point if it is not visible by itself."""
    is_seen = character.isprintable() and not character.isspace() and not unicodedata.combining(character)
    return character if is_seen else f"U+{ord(character):04X}"


def report_of(index: Any) -> TextReport:
    """Returns the report on a prepared set, from its index."""
    return TextReport.of(*(index[name].to_pylist() for name in ("id", "text", "duration_s")))
