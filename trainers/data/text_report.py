"""What to look at in the transcripts of a prepared set: pairs that do not belong together show in them first. Pure."""

import heapq
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from trainers.config.wording import counted

# Of each kind, so many are shown.
SHOWN = 20
# A character that is seen less often in a set is likelier a slip than a letter.
RARE = 3
# Scripts with letters that look alike, which keyboards mix up within words. Japanese writes several in each sentence.
ALIKE = frozenset({"LATIN", "CYRILLIC", "GREEK", "ARMENIAN"})


@dataclass(frozen=True)
class Paced:
    """A clip with the characters of its text by second of its audio."""

    characters_per_s: float
    id: str
    text: str


@dataclass(frozen=True)
class TextReport:
    """Counts of the transcripts of a set.

    Attributes:
        characters: How often each character is used, the most frequent first.
        rare: Characters that fewer than RARE clips use, with the first of these.
        mixed: Words with letters of several scripts that look alike, with the first clip of each.
        empty: Clips without a text.
        fastest: The SHOWN clips with the longest text for their audio; texts that belong to longer clips are there.
        slowest: Those with the shortest, but for empty ones.
    """

    characters: Counter[str]
    rare: dict[str, str] = field(default_factory=dict)
    mixed: dict[str, str] = field(default_factory=dict)
    empty: int = 0
    fastest: Sequence[Paced] = ()
    slowest: Sequence[Paced] = ()

    @classmethod
    def of(cls, ids: Sequence[str], texts: Sequence[str], durations_s: Sequence[float]) -> "TextReport":
        """Reports on clips, whose durations are more than 0."""
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
            # Most texts are of one script, and their words need no look.
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
        """The report as people read it."""
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
    """The scripts of ALIKE that the letters of a text are of."""
    names = (unicodedata.name(character, "").partition(" ")[0] for character in text if character.isalpha())
    return ALIKE & set(names)


def named(character: str) -> str:
    """A character as it can be seen: by its code point where it has no look of its own."""
    is_seen = character.isprintable() and not character.isspace() and not unicodedata.combining(character)
    return character if is_seen else f"U+{ord(character):04X}"


def report_of(index: Any) -> TextReport:
    """The report on a prepared set, by its index."""
    return TextReport.of(*(index[name].to_pylist() for name in ("id", "text", "duration_s")))
