"""Normalizes transcripts for training. Imports nothing heavy, since every preparation task imports it."""

import re
import unicodedata
from dataclasses import dataclass

# Invisible, and often left in text copied from a page: soft hyphen, zero-width space, direction marks, embeddings,
# overrides and isolates, byte order mark. Joiners (U+200C, U+200D) change the writing of Persian and Indic words, and
# are kept.
_DIRECTIONS = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_INVISIBLE = dict.fromkeys([0x00AD, 0x200B, *_DIRECTIONS, 0x2060, 0xFEFF])

# Kept, since they are read aloud although their category is punctuation. Symbols (€, +, °) have other categories.
SPOKEN = frozenset("%‰&@#§")

_APOSTROPHES = frozenset("'\N{RIGHT SINGLE QUOTATION MARK}\N{FULLWIDTH APOSTROPHE}")
_HYPHENS = frozenset("-\N{HYPHEN}\N{NON-BREAKING HYPHEN}")
_IN_NUMBERS = frozenset(".,:")

# Hiragana, katakana and Han are written without spaces, so removed punctuation must not leave a space.
_UNSPACED = "\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
_REMOVED = "\0"
_REMOVED_BETWEEN_UNSPACED = re.compile(f"(?<=[{_UNSPACED}]){_REMOVED}+(?=[{_UNSPACED}])")


@dataclass(frozen=True)
class TextRules:
    """The options of `normalize`; ignored characters are removed without leaving a space."""

    do_lower_case: bool
    do_remove_punctuation: bool
    chars_to_ignore: tuple[str, ...] = ()


def normalize(text: str, rules: TextRules) -> str:
    """Normalizes a transcript for training.

    Text is always converted to Unicode NFC, without invisible characters, and with whitespace of every kind
    collapsed to single spaces and removed at the ends.

    To remove punctuation, every character of Unicode category P, in any script, is replaced by a space (by nothing
    between Japanese or Chinese characters). The exceptions, which are part of a word or read aloud, are
    apostrophes and hyphens between letters or digits (l'homme, rock-n-roll), normalized to ' and -; a
    full stop, comma or colon between digits (3,5 and 10:30); and % ‰ & @ # §.
    """
    text = text.translate(_INVISIBLE)
    if rules.do_lower_case:
        text = text.lower()
    text = unicodedata.normalize("NFC", text)
    for ignored in rules.chars_to_ignore:
        text = text.replace(unicodedata.normalize("NFC", ignored), "")
    if rules.do_remove_punctuation:
        text = _without_punctuation(text)
    return collapse_whitespace(text)


def collapse_whitespace(text: str) -> str:
    """Returns a text with single spaces between words, and none at the ends."""
    return " ".join(text.split())


def _without_punctuation(text: str) -> str:
    kept = []
    for position, character in enumerate(text):
        if character in SPOKEN or unicodedata.category(character)[0] != "P":
            kept.append(character)
            continue
        before, after = text[position - 1 : position], text[position + 1 : position + 2]
        kept.append(_inside(before, character, after) or _REMOVED)
    joined = _REMOVED_BETWEEN_UNSPACED.sub("", "".join(kept))
    return joined.replace(_REMOVED, " ")


def _inside(before: str, character: str, after: str) -> str:
    """Returns what replaces a punctuation character between two others; "" if it is removed."""
    if character in _IN_NUMBERS and before.isdecimal() and after.isdecimal():
        return character
    if _is_of_word(before) and _is_of_word(after):
        if character in _APOSTROPHES:
            return "'"
        if character in _HYPHENS:
            return "-"
    return ""


def _is_of_word(character: str) -> bool:
    """Returns True for a letter, digit or combining mark; False for ""."""
    return bool(character) and unicodedata.category(character)[0] in "LMN"
