import pytest

from trainers.scoring.ranking import ranking_rate, score_line

TOTALS = {"wer": 80.04, "cer": 4.21, "normalizer": "basic", "normalizer_version": "1"}


@pytest.mark.parametrize(
    "language",
    [
        "zh",
        "zh-TW",
        "yue_Hant",
        "ja",
        "jpn",
        "th",
        "Thai",
        "lo",
        "km",
        "my",
        "Burmese",
        "bo",
        "dz",
        "Chinese",
        "日本語",
        "tha_Thai",
    ],
)
def test_languages_written_without_spaces_are_ranked_by_characters(language: str) -> None:
    assert ranking_rate(language) == "cer"


@pytest.mark.parametrize("language", ["en", "vi", "ko", "hi", "ar", "sr", "Serbian", "english", "", None, "xx"])
def test_all_others_are_ranked_by_words(language: str | None) -> None:
    assert ranking_rate(language) == "wer"


def test_a_line_names_the_normalizer() -> None:
    assert score_line(TOTALS, "test (5 utterances)", "Serbian") == (
        "WER 80.0% on test (5 utterances) · normalizer basic 1"
    )


def test_a_line_says_why_characters_rank() -> None:
    assert score_line(TOTALS, "test", "Thai") == (
        "CER 4.2%, WER 80.0% on test · CER ranks: Thai is written without spaces between words · normalizer basic 1"
    )


def test_a_score_of_version_0_1_names_no_normalizer() -> None:
    assert score_line({"wer": 4.2, "cer": 1.0}, "test", None) == "WER 4.2% on test"


def test_a_rate_that_no_reference_defines_is_said_so() -> None:
    assert score_line({**TOTALS, "wer": None}, "test", "en") == "WER undefined on test · normalizer basic 1"


def test_each_of_several_languages_has_its_rates() -> None:
    one = {"en": {"wer": 3.0, "cer": 1.0}}
    both = {**one, "th": {"wer": 80.0, "cer": 1.3}}
    assert score_line({**TOTALS, "languages": both}, "test", "en") == (
        "WER 80.0% on test · normalizer basic 1 · en: WER 3.0%; th: CER 1.3%, WER 80.0%"
    )
    assert score_line({**TOTALS, "languages": one}, "test", "en") == score_line(TOTALS, "test", "en")
