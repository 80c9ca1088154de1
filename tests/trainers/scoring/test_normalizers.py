"""What is done to texts before they are compared: names, versions, scripts, and equality with Whisper's own."""

import json
import pickle
import subprocess
import sys
import unicodedata
from importlib.resources import files

import jiwer
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers.models.whisper.english_normalizer import BasicTextNormalizer, EnglishTextNormalizer

from tests.trainers.scoring.sentences import SENTENCES, Sentence
from trainers.errors import ConfigError
from trainers.metrics.known_metrics import CER, WER
from trainers.metrics.metric import EditCounts
from trainers.scoring.error_rate import count_edits, score_utterance
from trainers.scoring.normalizers import NORMALIZERS, Normalizer, hidden_marks, normalize_basic, normalizer_named

# Of each sentence, its words mixed with those of others: many scripts, with their marks.
words_of_all_scripts = st.lists(
    st.sampled_from(sorted({word for sentence in SENTENCES for word in sentence.text.split()})), max_size=9
).map(" ".join)
# Letters, marks, digits, joiners, direction marks, punctuation and symbols in any order.
hard_text = st.text(
    st.one_of(
        st.characters(exclude_categories=["Cs"]),
        st.sampled_from("aİIΣςßſﬁ가각ｶﾞ゛เำํา้ກໍາ\u200c\u200d\u200e\u200f'’`´-‑.,:%€°[]<>()\"״אמ·l²½①☃\ufe0f\u20e3"),
    ),
    max_size=25,
)
ENGLISH = """
twenty one two hundred and a half million dollars cents double oh seven percent minus point five 3.14 $20 1960s he's
she'd won't gonna mr dr. colour centre realised [noise] (aside) um café b747 10km thirds £3 cause kinda
"""
english = st.lists(st.sampled_from(ENGLISH.split()), max_size=12).map(" ".join)


@pytest.mark.parametrize("sentence", SENTENCES, ids=lambda sentence: sentence.language)
class TestSentences:
    def test_letters_and_marks_stay_and_punctuation_goes(self, sentence: Sentence) -> None:
        assert normalize_basic(sentence.text) == sentence.basic

    def test_encoding_does_not_count(self, sentence: Sentence) -> None:
        forms = {normalize_basic(unicodedata.normalize(form, sentence.text)) for form in ("NFC", "NFD", "NFKC", "NFKD")}
        assert forms == {sentence.basic}

    def test_one_other_mark_or_letter_is_one_wrong_word(self, sentence: Sentence) -> None:
        assert sentence.word in sentence.basic.split()
        hypothesis = " ".join(sentence.misheard if word == sentence.word else word for word in sentence.basic.split())
        counts = score_utterance("u", sentence.text, hypothesis, 1.0, normalizer_named("basic")).counts
        assert (counts["wer"].errors, counts["wer"].substitutions) == (1, 1)
        assert counts["cer"].errors >= 1

    def test_direction_marks_and_joiners_do_not_count(self, sentence: Sentence) -> None:
        marked = f"\u202b{sentence.text}\u202c\u200f".replace(" ", " \u2067\u200e")
        assert normalize_basic(marked) == sentence.basic


def test_the_sentences_are_of_more_than_twelve_scripts() -> None:
    scripts = {unicodedata.name(sentence.word[0]).split()[0] for sentence in SENTENCES}
    assert len(scripts) >= 20, scripts


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("१२ ١٢ ۱۲ ๑๒ １２ 12", "12 12 12 12 12 12"),  # decimal digits
        ("3,5 and 3.5 at 10:30; ١٬٢٣٤٫٥", "3,5 and 3.5 at 10:30 1,234.5"),
        ("ن\u0640\u0640\u0640عم", "نعم"),  # tatweel
        ("ﻻ ﷲ", "لا الله"),  # presentation forms
        ("می\u200cخواهم", "میخواهم"),
        ("അവന\u0d4d\u200d", "അവൻ"),  # a chillu as it was written before Unicode 5.1
        ("হঠাত\u09cd\u200d", "হঠাৎ"),
        ("น\u0e49\u0e33 น\u0e4d\u0e49\u0e32", "น\u0e49\u0e33 น\u0e49\u0e33"),  # SARA AM whole and in halves
        ("ｶﾞｿﾘﾝ、ガソリン", "ガソリンガソリン"),
        ("「トム・クルーズ」 は OK です", "トムクルーズは ok です"),
        ("o‘zbek oʻzbek o`zbek o’zbek", "o'zbek o'zbek o'zbek o'zbek"),
        ("rock-n-roll 'n' the dogs' bones", "rock n roll n the dogs bones"),
        ('צה״ל צה"ל בית־ספר', "צהל צהל בית ספר"),
        ("col·lega", "collega"),
        ("İstanbul ISTANBUL", "istanbul istanbul"),
        ("50% 5°C €3 AT&T #1", "50 % 5 ° c € 3 at & t # 1"),
        ("♪ la ♪ x+y ™ 1\ufe0f\u20e3 \U0001f468\u200d\U0001f469 ¨a", "la x y 1 a"),
        ("[music] <unk> yes (well) no", "yes well no"),
        ("so\u00adft zero\u200bwidth a\u00a0b\tc\x00d", "soft zerowidth a b c d"),
        ("...", ""),
    ],
)
def test_what_basic_does(text: str, expected: str) -> None:
    assert normalize_basic(text) == expected


@given(hard_text)
def test_basic_is_stable_and_leaves_one_form(text: str) -> None:
    once = normalize_basic(text)
    assert normalize_basic(once) == once
    assert unicodedata.is_normalized("NFC", once)
    assert once == " ".join(once.split())


@given(words_of_all_scripts)
def test_basic_drops_no_mark_of_a_word(text: str) -> None:
    def marks(of: str) -> list[str]:
        return [letter for letter in unicodedata.normalize("NFD", of) if unicodedata.category(letter)[0] == "M"]

    assert marks(normalize_basic(text)) == marks(text.replace("İ", "i"))


@given(hard_text | words_of_all_scripts)
def test_whisper_basic_is_transformers_own(text: str) -> None:
    assert normalizer_named("whisper_basic")(text) == " ".join(BasicTextNormalizer()(text).split())


def test_whisper_basic_eats_marks_as_published_scores_had_it() -> None:
    assert normalizer_named("whisper_basic")("किताब") == "क त ब"


@given(english | hard_text)
def test_whisper_english_is_transformers_own_with_whispers_table_of_spellings(text: str) -> None:
    table = json.loads(files("whisper_normalizer").joinpath("normalizers/english.json").read_text())
    assert normalizer_named("whisper_english")(text) == " ".join(EnglishTextNormalizer(table)(text).split())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # Numbers: cardinals, years, decimals, scales, ordinals, decades, money, percentages, digits one by one, signs.
        ("forty seven", "47"),
        ("eighteen twelve", "1812"),
        ("six point two five billion", "6250000000"),
        ("300 thousand dollars", "$300000"),
        ("£7 thousands", "£7000s"),
        ("fifty two thousand and eleven", "52011"),
        ("eighteen seventies", "1870s"),
        ("forty second", "42nd"),
        ("june fourth twenty thirty", "june 4th 2030"),
        ("8 point 05", "8.05"),
        ("sixty per cent", "60%"),
        ("double zero nine", "009"),
        ("four triple oh four", "40004"),
        ("minus 12", "-12"),
        ("positive forty", "+40"),
        ("five dollars and twenty cents", "$5.20"),
        ("$0.45", "¢45"),
        ("two and a half million", "2500000"),
        ("a320", "a 320"),
        ("11 th", "11th"),
        # Spelling, contractions, titles, units.
        ("the organisation's colour", "the organization is color"),
        ("I won't, you're", "i will not you are"),
        ("Dr. Lee and Mrs. Day", "doctor lee and missus day"),
        ("5kg", "5 kg"),
        ("the cause of it", "the cause of it"),
    ],
)
def test_what_whisper_english_does(text: str, expected: str) -> None:
    assert normalizer_named("whisper_english")(text) == expected


@pytest.mark.parametrize("normalizer", NORMALIZERS.values(), ids=str)
class TestEachNormalizer:
    def test_has_a_name_and_a_version_that_stand_in_scores(self, normalizer: Normalizer) -> None:
        assert normalizer_named(normalizer.name) is normalizer
        assert normalizer.to_json_dict() == {"normalizer": normalizer.name, "normalizer_version": normalizer.version}
        assert str(normalizer) == f"{normalizer.name} {normalizer.version}"

    def test_can_be_pickled(self, normalizer: Normalizer) -> None:
        normalizer("warm")
        assert pickle.loads(pickle.dumps(normalizer)) == normalizer

    def test_edit_counts_agree_with_jiwer_on_the_normalized_text(self, normalizer: Normalizer) -> None:
        @given(words_of_all_scripts | hard_text, words_of_all_scripts | hard_text)
        def agree(reference: str, hypothesis: str) -> None:
            texts = normalizer(reference), normalizer(hypothesis)
            counts = score_utterance("u", reference, hypothesis, 1.0, normalizer).counts
            words, characters = jiwer.process_words(*texts), jiwer.process_characters(*texts)
            for name, theirs, length in (("wer", words, len(texts[0].split())), ("cer", characters, len(texts[0]))):
                edits = theirs.insertions, theirs.deletions, theirs.substitutions
                assert counts[name] == EditCounts(*edits, length)
            assert (count_edits(WER, *texts), count_edits(CER, *texts)) == (counts["wer"], counts["cer"])

        agree()


@pytest.mark.parametrize(
    ("text", "hiding"),
    [
        ("यह किताब बहुत अच्छी है", ["whisper_basic", "whisper_english"]),
        ("മലയാളം പഠിക്കുന്നു നല്ലത്", ["whisper_basic", "whisper_english"]),
        ("ภาษาไทยมีวรรณยุกต์", ["whisper_basic", "whisper_english"]),
        ("هٰذَا كِتَابٌ جَيِّدٌ", ["whisper_basic", "whisper_english"]),
        ("هذا كتاب جيد", []),
        ("זֶה סֵפֶר טוֹב", ["whisper_basic", "whisper_english"]),
        ("זה ספר טוב", []),
        # No letter has dot and acute in one.
        ("Ọ̀rọ̀ Yorùbá dára", ["whisper_basic", "whisper_english"]),
        ("Tiếng Việt là ngôn ngữ", ["whisper_english"]),
        ("il était une fois à Orléans", ["whisper_english"]),
        (unicodedata.normalize("NFD", "il était une fois à Orléans"), ["whisper_english"]),
        ("schöne Grüße aus München", ["whisper_english"]),
        ("мой новый дом", ["whisper_english"]),
        ("がんばります", ["whisper_english"]),
        ("한국어를 말합니다", []),
        ("今天天气很好", []),
        (" ".join(["one café in fifty words"] + ["words"] * 46), []),
        ("İyi (gün) ❤️ [şey]", ["whisper_english"]),
    ],
)
def test_a_normalizer_that_hides_marks_of_the_references_is_told_of(text: str, hiding: list[str]) -> None:
    assert [name for name, each in NORMALIZERS.items() if hidden_marks(each, [text])] == hiding
    assert not any(hidden_marks(each, [text], "en-GB") for each in NORMALIZERS.values())


def test_what_is_said_of_hidden_marks_has_an_example() -> None:
    said = hidden_marks(normalizer_named("whisper_basic"), ["नमस्ते", "यह किताब", "किताब"])
    assert said == (
        "the normalizer whisper_basic removes marks from 3 of 4 words of the references, such as किताब, which becomes "
        "क त ब: errors in these marks are not counted; the normalizer basic keeps them"
    )


def test_an_unknown_name_is_an_error_that_names_those_there_are() -> None:
    with pytest.raises(ConfigError, match="'whisper' is not known: use one of none, basic, whisper_basic, whisper_eng"):
        normalizer_named("whisper")


def test_the_counting_part_loads_no_heavy_library() -> None:
    modules = ("trainers.scoring.normalizers", "trainers.scoring.transcripts", "trainers.scoring.ranking")
    heavy = ("torch", "transformers", "datasets", "evaluate", "numpy", "pyarrow", "ray")
    script = (
        f"import importlib, sys\nfor name in {modules!r}: importlib.import_module(name)\n"
        "from trainers.scoring.normalizers import NORMALIZERS\n"
        "for each in NORMALIZERS.values(): each('Twenty one colours.')\n"
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=120)
    assert (result.stdout, result.stderr) == ("[]\n", "")
