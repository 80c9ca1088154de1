"""`--chars_to_ignore` of the CTC scripts: the same characters go as by the regular expression that they make of it."""

import re
import warnings

import pytest

from trainers.config.flags.script_flags import ignored_characters, ranges_note
from trainers.data.text import TextRules, normalize

# As a shell passes it: of Optimum's example for Gaudi in single quotes, and of that of transformers word by word.
GAUDI = [r'",?.!-;:\"“%‘”"']
WORDS = [*',?.!-;:"“%‘”�']
TEXT = "don't say “2,000 = 100%‘”; it’s #1 (a-b) <c>?"


@pytest.mark.parametrize(
    "texts", [GAUDI, [GAUDI[0].strip('"')], WORDS, [",?.!", r"\-", r"\;:"], ["a-e"], [r"\s,"], ["]x"], ["-_"]]
)
def test_a_text_becomes_what_the_script_makes_of_it(texts: list[str]) -> None:
    with warnings.catch_warnings(action="ignore", category=FutureWarning):
        cleaned = re.sub(f"[{''.join(texts)}]", "", TEXT).lower()
    rules = TextRules(do_lower_case=True, do_remove_punctuation=False, chars_to_ignore=tuple(ignored_characters(texts)))
    assert normalize(TEXT, rules) == " ".join(cleaned.split())


def test_characters_that_nobody_typed_are_named() -> None:
    assert set("0123456789'") <= {*ignored_characters(GAUDI)}
    note = ranges_note(GAUDI)
    assert note is not None and "# $ & ' ( ) * + / 0 1 2 3 4 5 6 7 8 9, all digits among them" in note
    alone = GAUDI[0].replace("-", "") + "-"
    assert {*ignored_characters([alone])} == {*',?.!-;:"“%‘”'}
    assert ranges_note([alone]) is None


@pytest.mark.parametrize(
    ("inside", "removed"),
    [(r"\u201c", "removes “, and"), (r"\s,", "removes U+0009 U+000A"), (r",\x2d\x3b", "removes - ;, and")],
)
def test_escapes_are_told_with_what_they_stand_for(inside: str, removed: str) -> None:
    assert removed in str(ranges_note([inside]))


def test_an_escaped_backslash_is_no_escape() -> None:
    assert ranges_note([r"\\d"]) is None


@pytest.mark.parametrize(
    ("inside", "problem"),
    [
        ("^a-z", "means all other characters"),
        ("a]b", "a ] ends it"),
        ("z-a", "bad character range z-a"),
        ("ab\\", "unterminated character set"),
        ("", "not a valid class of characters"),
        (r"\w", "matches"),
        ("A-Z", "capital letters, A B C D E"),
    ],
)
def test_what_is_no_list_of_characters_is_refused_with_the_reason(inside: str, problem: str) -> None:
    with pytest.raises(ValueError, match=re.escape(problem)):
        ignored_characters([inside])
