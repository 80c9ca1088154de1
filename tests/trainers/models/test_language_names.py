"""Codes of corpora, standards and people, and Whisper's token for each; names in any language."""

import csv
from pathlib import Path

import pytest
from transformers.models.whisper import tokenization_whisper

from trainers.models.language_names import LANGUAGES, code_or_name, no_token, whisper_code

# corpus, code as the corpus writes it, Whisper's code; empty: Whisper has no token for it.
CORPORA = Path(__file__).parent / "corpus_languages.csv"


def corpora() -> list[list[str]]:
    with CORPORA.open(encoding="utf-8", newline="") as file:
        return [*csv.reader(file)][1:]


@pytest.mark.parametrize("corpus", sorted({row[0] for row in corpora()}))
def test_each_language_of_a_corpus_has_its_token_or_none(corpus: str) -> None:
    rows = [(code, token) for name, code, token in corpora() if name == corpus]
    assert [(code, whisper_code(code) or "") for code, _ in rows] == rows


def test_a_language_of_a_corpus_without_a_token_is_named_in_the_refusal() -> None:
    for _, code, token in corpora():
        if not token:
            assert no_token(code).startswith(f"Whisper has no token for {code!r} (") and "write a code" not in no_token(
                code
            )


def test_the_names_are_those_of_transformers_and_aliases_of_its_own_are_known() -> None:
    assert [*LANGUAGES.items()] == [*tokenization_whisper.LANGUAGES.items()]
    for name, code in tokenization_whisper.TO_LANGUAGE_CODE.items():
        assert whisper_code(name) == whisper_code(name.title()) == whisper_code(code) == code


@pytest.mark.parametrize(
    ("given", "code"),
    [
        # In the language itself, as CLDR has it, and in English.
        *(("Deutsch", "de"), ("Español", "es"), ("français", "fr"), ("Farsi", "fa"), ("Bangla", "bn"), ("中文", "zh")),
        *(
            ("Türkçe", "tr"),
            ("한국어", "ko"),
            ("ไทย", "th"),
            ("srpski", "sr"),
            ("粵語", "yue"),
            ("Norwegian Bokmål", "no"),
        ),
        *(("Brazilian Portuguese", "pt"), ("Chinese (Cantonese)", "yue"), ("Filipino", "fil"), ("Xhosa", "xh")),
        # Deprecated, or of a locale.
        *(("iw", "he"), ("iw_IL", "he"), ("in", "id"), ("ji", "yi"), ("mo", "ro"), ("jw", "jv"), ("en_US.UTF-8", "en")),
        # Members of macrolanguages.
        *(("arb", "ar"), ("arz_Arab", "ar"), ("pes", "fa"), ("prs", "fa"), ("pbt", "ps"), ("cmn-Hans-CN", "zh")),
        *(("zh-Hant-HK", "yue"), ("zh-MO", "yue"), ("cmn_hant_hk", "zh"), ("zh_Hant_TW", "zh"), ("ind", "id")),
        # Alike, and others: Taiwanese and Wu are not Mandarin, and an Arabic script is not Whisper's Azerbaijani.
        *(("nan-tw", "nan"), ("wuu", "wuu"), ("azb_Arab", "azb"), ("ltg", "ltg"), ("min", "min"), ("gsw", "gsw")),
        # None, as it was given.
        *(("Klingonisch?", "klingonisch?"), ("Basa Jawa", "basa jawa"), ("Chinese Yue", "chinese yue"), ("qqq", "qqq")),
    ],
)
def test_codes_and_names(given: str, code: str) -> None:
    assert code_or_name(given) == code
    assert code_or_name(f" {given.upper()} ") == code or code not in (*LANGUAGES, "jv", "fil")


@pytest.mark.parametrize("tag", ["zh_HK.UTF-8", "zh_HK.utf8", "zh_HK@radical", "zh-HK-", "zh-yue", "zh_Hant_MO.UTF-8"])
def test_what_follows_a_tag_of_cantonese_leaves_it_cantonese(tag: str) -> None:
    assert whisper_code(tag) == "yue"


@pytest.mark.parametrize(
    "tag",
    [
        *("zh-HK (Cantonese)", "zh_CN (Cantonese)", "zh_hk_cantonese", "zh-cantonese", "zh-CN-yue", "zh-minnan"),
        *("zh-Hant-HK_x1", "zh-x-cantonese", "zh-guangdong"),
    ],
)
def test_chinese_of_an_unknown_kind_is_not_taken_for_mandarin(tag: str) -> None:
    assert whisper_code(tag) is None
    assert no_token(tag).endswith((": write a code (sr) or a name (Serbian).", "did you mean Cantonese?"))


@pytest.mark.parametrize(
    ("given", "code"),
    [
        *(("zh_CN.UTF-8", "zh"), ("zh-Latn-pinyin", "zh"), ("en_US@x", "en"), ("azj-script_latin", "az")),
        *(("espanol", "es"), ("Francais", "fr"), ("turkce", "tr"), ("portugues", "pt"), ("cestina", "cs")),
        *(("Chinese (Simplified)", "zh"), ("Portuguese (Brazil)", "pt"), ("Chinese (Hong Kong)", "yue")),
        *(("zlm", "ms"), ("zlm_Latn", "ms"), ("Norwegian Bokmal", "no"), ("bokmal", "no")),
        *(("Bahasa Melayu", "ms"), ("Malti", "mt"), ("Kihindi", "hi"), ("Kiswahili", "sw")),
        *(("Private Use", None), ("Chinese (Wu)", None), ("Chinese (Klingon)", None)),
    ],
)
def test_names_without_accents_and_with_regions(given: str, code: str | None) -> None:
    assert whisper_code(given) == code


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("Xhosa", "Whisper has no token for 'Xhosa'."),
        ("xho_Latn", "Whisper has no token for 'xho_Latn' (Xhosa)."),
        ("Englsh", "Whisper has no token for 'Englsh'; did you mean English?"),
        ("Deutch", "Whisper has no token for 'Deutch'; did you mean German?"),
        ("qqq", "Whisper has no token for 'qqq': write a code (sr) or a name (Serbian)."),
        ("Duits-achtig", "Whisper has no token for 'Duits-achtig': write a code (sr) or a name"),
    ],
)
def test_what_is_said_of_one_without_a_token(given: str, said: str) -> None:
    assert no_token(given).startswith(said)
