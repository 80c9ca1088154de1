from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from trainers.data.text_report import SHOWN, TextReport, named, scripts_of


def test_scripts_that_look_alike_are_found_within_words_and_not_between_them() -> None:
    # The third has a Latin a in a Cyrillic word; Japanese mixes its scripts in every sentence.
    texts = ["добар дан", "добар day", "добaр дан", "東京タワーへ"]
    report = TextReport.of(["a", "b", "c", "d"], texts, [1.0] * 4)
    assert report.mixed == {"добaр": "c"}
    assert scripts_of("naïve Ωmega") == {"LATIN", "GREEK"}


def test_rare_characters_come_with_a_clip_that_has_them() -> None:
    report = TextReport.of(["a", "b", "c", "d"], ["aa", "a", "ab", "a\N{COMBINING ACUTE ACCENT}b"], [1.0] * 4)
    assert report.rare == {"b": "c", "\N{COMBINING ACUTE ACCENT}": "d"}
    assert [named(character) for character in report.rare] == ["b", "U+0301"]
    assert any("2 characters in fewer than 3 clips: b (c), U+0301 (d)" in line for line in report.lines())


def test_a_text_of_another_clip_is_among_the_fastest_or_the_slowest() -> None:
    ids = [str(number) for number in range(100)]
    texts, durations_s = ["one two three four"] * 100, [2.0] * 100
    texts[40], texts[60], texts[70] = "a" * 200, "b", ""
    report = TextReport.of(ids, texts, durations_s)
    assert (report.fastest[0].id, report.fastest[0].characters_per_s) == ("40", 100.0)
    assert (report.slowest[0].id, report.slowest[0].characters_per_s) == ("60", 0.5)
    assert len(report.fastest) == len(report.slowest) == SHOWN
    assert report.empty == 1
    assert "1 clip without text" in list(report.lines())


@given(st.lists(st.text(max_size=20), max_size=20))
def test_every_character_is_counted(texts: list[str]) -> None:
    report = TextReport.of([str(number) for number in range(len(texts))], texts, [1.0] * len(texts))
    assert report.characters == Counter("".join(texts))
    assert report.empty == sum(not text for text in texts)
    assert list(report.lines())
