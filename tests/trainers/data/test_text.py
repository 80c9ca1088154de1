import subprocess
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainers.data.text import TextRules, normalize
from trainers.scoring.normalizers import normalizer_named


def rules(*, lower: bool, remove: bool) -> TextRules:
    return TextRules(do_lower_case=lower, do_remove_punctuation=remove)


def as_trained(text: str) -> str:
    return normalize(text, rules(lower=True, remove=True))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Реч — „добар дан“, рече Ана-Марија.", "реч добар дан рече ана-марија"),
        ("Љубав, њива… «Да»; џак!", "љубав њива да џак"),
        ("Žena reče: „Đak ide u školu.”", "žena reče đak ide u školu"),
        (
            "L’homme d’aujourd’hui, c’est-à-dire\u202f: «\xa0oui\xa0»\u202f!",
            "l'homme d'aujourd'hui c'est-à-dire oui",
        ),
        ("「はい、トム・クルーズです。」と言った。", "はいトムクルーズですと言った"),
        ("コーヒーは二千円。 OK?", "コーヒーは二千円 ok"),
        ("广州市，房地产。", "广州市房地产"),
        ("rock-n-roll 'n' the dogs' bones -- well-", "rock-n-roll n the dogs bones well"),
        ("3,5 or 1.000.000 at 10:30, 50% of it.", "3,5 or 1.000.000 at 10:30 50% of it"),
        ("अच्छा। नमस्ते", "अच्छा नमस्ते"),
        ("...", ""),
    ],
)
def test_punctuation_goes_and_words_stay_whole(text: str, expected: str) -> None:
    assert as_trained(text) == expected


def test_both_switches_off_keeps_case_and_punctuation() -> None:
    text = "  The\t“lower-case”,\n being  invented. "
    assert normalize(text, rules(lower=False, remove=False)) == "The “lower-case”, being invented."


def test_the_same_letter_in_two_encodings_becomes_one() -> None:
    assert as_trained("cafe\u0301 c\u030c") == "café č"


def test_invisible_characters_go_and_joiners_stay() -> None:
    assert as_trained("\ufeffso\u00adft zero\u200bwidth") == "soft zerowidth"
    marks = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
    assert as_trained("שָׁלוֹם".join(marks)) == as_trained("שָׁלוֹם" * (len(marks) - 1))
    assert "\u200c" in as_trained("می\u200cخواهم")


@given(st.text(), st.booleans(), st.booleans())
def test_normalizing_twice_changes_nothing_more(text: str, lower: bool, remove: bool) -> None:
    once = normalize(text, rules(lower=lower, remove=remove))
    assert normalize(once, rules(lower=lower, remove=remove)) == once
    assert unicodedata.is_normalized("NFC", once)
    assert once == " ".join(once.split())


@pytest.mark.parametrize("name", ["basic", "whisper_basic"])
def test_scoring_ignores_case_and_punctuation_when_enabled(name: str) -> None:
    score_form = normalizer_named(name)
    assert score_form(" Hello,  World! [noise]") == score_form("hello world")
    assert score_form("Čaša.") == "čaša"


def test_scoring_compares_as_written_when_disabled() -> None:
    assert normalizer_named("none")(" Hello,  World!\n") == "Hello, World!"


def test_the_modules_do_not_bring_torch_in() -> None:
    modules = "trainers.data.text, trainers.data.audio, trainers.data.sources.manifest"
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_ignored_characters_go_whole_and_leave_no_space() -> None:
    ignored = ("'", "…", "e\N{COMBINING ACUTE ACCENT}")
    ignoring = TextRules(do_lower_case=False, do_remove_punctuation=False, chars_to_ignore=ignored)
    assert normalize("d'accord… caf\N{LATIN SMALL LETTER E WITH ACUTE} (oui)", ignoring) == "daccord caf (oui)"
