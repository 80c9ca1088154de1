"""What `--chars_to_ignore` removes: the scripts make a regular expression's class of it, in which `!-;` is a range."""

import re
import sys
import warnings
from collections.abc import Sequence
from functools import cache

# A class of more, such as \w, is not meant as a list of characters.
MOST_CHARACTERS = 1000
MOST_SHOWN = 40
_SURROGATES = range(0xD800, 0xE000)
# Escapes of other characters than the one that is escaped: \d, \s, \u201c, \x41.
_OF_MORE = re.compile(r"(?<!\\)(?:\\\\)*\\[a-zA-Z0-9]")
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


def ignored_characters(texts: Sequence[str]) -> list[str]:
    """The characters that the class of all texts matches, in the order of their code points.

    Raises:
        ValueError: it is no class, or one that `data.chars_to_ignore` cannot express; says what to write instead.
    """
    return list(_matched("".join(texts)))


def ranges_note(texts: Sequence[str]) -> str | None:
    """Says which characters go that nobody has typed, and how to keep them. None: those that were typed are all."""
    inside = "".join(texts)
    if _OF_MORE.search(inside):
        found = [_shown(each) for each in _matched(inside) if each not in inside]
        rest = f" … ({len(found)} characters)" if len(found) > MOST_SHOWN else ""
        return (
            f"--chars_to_ignore {inside}: the script makes a regular expression's class of it, in which a backslash "
            f"and a letter stand for other characters: it removes {' '.join(found[:MOST_SHOWN])}{rest}, and so does "
            "the recipe; to remove others, type them"
        )
    typed = "".join(dict.fromkeys(_ESCAPED.sub(r"\1", inside)))
    more = [character for character in _matched(inside) if character not in typed]
    if not more:
        return None
    digits = ", all digits among them" if set("0123456789") <= {*more} else ""
    alone = re.sub(r"([\]\\^])", r"\\\1", typed.replace("-", "")) + "-" * ("-" in typed)
    return (
        f"--chars_to_ignore {inside}: the script makes a regular expression's class of it, in which a - between two "
        f"characters is a range: it also removes {' '.join(_shown(each) for each in more)}{digits}, and so does the "
        f"recipe; for the typed characters alone, which is another training than the script's, write a - as the last "
        f"one: --chars_to_ignore '{alone}'"
    )


def _shown(character: str) -> str:
    return character if character.isprintable() and not character.isspace() else f"U+{ord(character):04X}"


@cache
def _matched(inside: str) -> str:
    pattern = _class_of(inside)
    found = "".join(pattern.findall(_all_characters()))
    if len(found) > MOST_CHARACTERS:
        raise ValueError(f"the class {pattern.pattern} matches {len(found)} characters: write those to remove")
    if capitals := [character for character in found if character.lower() != character]:
        raise ValueError(
            f"the script removes capital letters, {' '.join(capitals[:5])} …, before it lower-cases a text, and "
            "Rayscribe lower-cases it first: leave them out, or prepare the texts yourself"
        )
    return found


def _class_of(inside: str) -> re.Pattern[str]:
    if inside.startswith("^"):
        raise ValueError(f"[{inside}] is all characters but these: write those to remove, or \\^ for the character")
    # As the first one it stands for itself.
    if "]" in _ESCAPED.sub("xx", inside)[1:]:
        raise ValueError(f"[{inside}]: a ] ends the class: write \\] for the character")
    try:
        with warnings.catch_warnings(action="ignore", category=FutureWarning):
            return re.compile(f"[{inside}]")
    except re.error as error:
        raise ValueError(
            f"[{inside}] is no class of characters for a regular expression, which the script makes of it "
            f"({error.msg}): write \\- and \\\\ for these characters themselves"
        ) from None


@cache
def _all_characters() -> str:
    return "".join(chr(code) for code in range(sys.maxunicode + 1) if code not in _SURROGATES)
