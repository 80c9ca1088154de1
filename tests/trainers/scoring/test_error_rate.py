import json
import pickle
import random
from collections.abc import Sequence
from dataclasses import replace

import jiwer
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainers.errors import ScoringError
from trainers.metrics.known_metrics import CER, WER
from trainers.metrics.metric import EditCounts
from trainers.scoring.error_rate import (
    UtteranceScore,
    check_ids,
    count_edits,
    score_utterance,
    total,
    total_by,
)

few_words = st.lists(st.sampled_from(["a", "b", "c", "dé", "ж"]), max_size=8).map(" ".join)
pairs = st.lists(st.tuples(few_words, few_words), min_size=1, max_size=12)


def levenshtein(reference: Sequence[str], hypothesis: Sequence[str]) -> int:
    previous = list(range(len(hypothesis) + 1))
    for i, spoken in enumerate(reference, 1):
        current = [i]
        for j, recognized in enumerate(hypothesis, 1):
            current.append(min(previous[j] + 1, current[-1] + 1, previous[j - 1] + (spoken != recognized)))
        previous = current
    return previous[-1]


def scores_of(texts: Sequence[tuple[str, str]]) -> list[UtteranceScore]:
    return [score_utterance(str(i), *pair, 1.0) for i, pair in enumerate(texts)]


@pytest.mark.parametrize(
    ("reference", "hypothesis", "expected"),
    [
        ("the cat sat", "the cat sat", EditCounts(0, 0, 0, 3)),
        ("the cat sat", "the hat sat", EditCounts(0, 0, 1, 3)),
        ("the cat sat", "the sat", EditCounts(0, 1, 0, 3)),
        ("the cat sat", "the big cat sat", EditCounts(1, 0, 0, 3)),
        ("the cat sat", "", EditCounts(0, 3, 0, 3)),
        ("", "the cat sat", EditCounts(3, 0, 0, 0)),
        ("  ", "\t", EditCounts(0, 0, 0, 0)),
        ("a b c d e", "x b d e f", EditCounts(1, 1, 1, 5)),
        ("The cat.", "the cat", EditCounts(0, 0, 2, 2)),
        ("добро дошли", "добро дошла", EditCounts(0, 0, 1, 2)),
    ],
)
def test_word_edits_of_known_pairs(reference: str, hypothesis: str, expected: EditCounts) -> None:
    assert count_edits(WER, reference, hypothesis) == expected


@pytest.mark.parametrize(
    ("reference", "hypothesis", "expected"),
    [
        ("cat", "cart", EditCounts(1, 0, 0, 3)),
        ("a cat", "acat", EditCounts(0, 1, 0, 5)),
        ("a  cat ", " a cat", EditCounts(0, 0, 0, 5)),
        ("", "ab c", EditCounts(4, 0, 0, 0)),
        ("ab c", "", EditCounts(0, 4, 0, 4)),
        ("добро", "добра", EditCounts(0, 0, 1, 5)),
        ("日本語", "日本", EditCounts(0, 1, 0, 3)),
    ],
)
def test_character_edits_of_known_pairs(reference: str, hypothesis: str, expected: EditCounts) -> None:
    assert count_edits(CER, reference, hypothesis) == expected


def test_any_whitespace_separates_words() -> None:
    assert count_edits(WER, "a\tb\u00a0c\nd", " a  b c d ") == EditCounts(0, 0, 0, 4)


def test_rate_of_an_empty_reference_is_none() -> None:
    assert EditCounts(insertions=2).rate is None
    assert EditCounts(reference_length=4, deletions=1).rate == 25.0


@given(few_words, few_words)
def test_errors_are_the_levenshtein_distance(reference: str, hypothesis: str) -> None:
    words, characters = count_edits(WER, reference, hypothesis), count_edits(CER, reference, hypothesis)
    assert words.errors == levenshtein(reference.split(), hypothesis.split())
    assert words.reference_length == len(reference.split())
    assert characters.errors == levenshtein(reference, hypothesis)
    assert characters.reference_length == len(reference)


@given(few_words, few_words)
def test_insertions_and_deletions_account_for_the_length(reference: str, hypothesis: str) -> None:
    counts = count_edits(WER, reference, hypothesis)
    length = counts.reference_length + counts.insertions - counts.deletions
    assert length == len(hypothesis.split())


@given(st.text(max_size=30), st.text(max_size=30))
def test_any_unicode_can_be_scored(reference: str, hypothesis: str) -> None:
    spaced = " ".join(reference.split()), " ".join(hypothesis.split())
    assert count_edits(WER, reference, hypothesis).errors == levenshtein(reference.split(), hypothesis.split())
    assert count_edits(CER, reference, hypothesis).errors == levenshtein(*spaced)


@given(pairs, st.randoms(use_true_random=False))
def test_order_of_the_utterances_does_not_move_the_score(texts: list[tuple[str, str]], rng: random.Random) -> None:
    scores = scores_of(texts)
    shuffled = rng.sample(scores, len(scores))
    assert total(shuffled, utterances=len(scores)) == total(scores, utterances=len(scores))


@given(pairs, st.integers(1, 5))
def test_sharing_out_over_workers_does_not_move_the_score(texts: list[tuple[str, str]], workers: int) -> None:
    scores = scores_of(texts)
    shares = [scores[rank::workers] for rank in range(workers)]
    gathered = [score for share in shares for score in share]
    expected = total(scores, utterances=len(scores))
    assert total(gathered, utterances=len(scores)) == expected
    sums = [sum((score.counts["wer"] for score in share), start=EditCounts()) for share in shares]
    assert sum(sums, start=EditCounts()) == expected.counts["wer"]


@given(pairs)
def test_rates_equal_jiwer_on_the_corpus(texts: list[tuple[str, str]]) -> None:
    spoken = [pair for pair in texts if pair[0]] or [("a", "b")]
    score = total(scores_of(spoken), utterances=len(spoken))
    references, hypotheses = map(list, zip(*spoken, strict=True))
    assert score.rates["wer"] == pytest.approx(100 * jiwer.wer(references, hypotheses))
    assert score.rates["cer"] == pytest.approx(100 * jiwer.cer(references, hypotheses))


def test_total_of_known_utterances() -> None:
    texts = [("a b c d", "a b c d"), ("a b", "a x y"), ("", "uh"), ("", "")]
    score = total(scores_of(texts), utterances=5)
    assert (score.utterances, score.scored, score.empty_references) == (5, 4, 2)
    assert score.counts["wer"] == EditCounts(2, 0, 1, 6)
    assert score.counts["cer"].reference_length == 7 + 3
    assert (score.counts["ser"].errors, score.rates["ser"]) == (2, 50.0)
    assert json.loads(json.dumps(score.to_json_dict())) == {
        **{"utterances": 5, "scored": 4, "empty_references": 2, "sentence_errors": 2, "ser": 50.0},
        **{"words": 6, "insertions": 2, "deletions": 0, "substitutions": 1, "wer": 50.0},
        **{"characters": 10, "character_insertions": 4, "character_deletions": 0, "character_substitutions": 1},
        "cer": 50.0,
    }


def test_only_empty_references_give_no_rate_but_all_counts() -> None:
    score = total(scores_of([("", "uh huh"), ("", "")]), utterances=2)
    assert score.rates == {"wer": None, "cer": None, "ser": 50.0}
    assert (score.counts["wer"].insertions, score.counts["cer"].insertions) == (2, 6)


def test_the_scores_of_languages_add_up_to_the_total() -> None:
    texts = [("a b", "a", "sr"), ("c", "c d", "en"), ("e f g", "e", "sr")]
    scores = [
        replace(score_utterance(str(row), reference, hypothesis, None), language=language)
        for row, (reference, hypothesis, language) in enumerate(texts)
    ]
    found = total_by((score.language, score) for score in scores)
    assert [*found] == ["en", "sr"]
    assert [(score.utterances, score.counts["wer"]) for score in found.values()] == [
        (1, EditCounts(1, 0, 0, 1)),
        (2, EditCounts(0, 3, 0, 5)),
    ]
    assert total_by((None, score) for score in scores) == {}


def test_total_of_nothing_is_an_error() -> None:
    with pytest.raises(ScoringError, match="0 of 7 utterances were scored"):
        total([], utterances=7)


def test_more_scored_than_asked_for_is_an_error() -> None:
    with pytest.raises(ScoringError, match="2 utterances were scored but only 1 asked for"):
        total(scores_of([("a", "a"), ("b", "b")]), utterances=1)


def test_texts_are_compared_normalized_and_kept_raw() -> None:
    score = score_utterance("u1", "The CAT", "the cat", 0.5, normalize=str.lower)
    assert (score.reference, score.hypothesis) == ("The CAT", "the cat")
    assert score.counts["wer"] == EditCounts(0, 0, 0, 2)
    assert score.counts["cer"] == EditCounts(0, 0, 0, 7)


def test_a_record_survives_json_and_pickle() -> None:
    score = score_utterance("u1", "š a", "s", 0.5)
    assert json.loads(json.dumps(score.to_json_dict())) == {
        **{"id": "u1", "reference": "š a", "hypothesis": "s", "duration_s": 0.5},
        **{"words": 2, "insertions": 0, "deletions": 1, "substitutions": 1},
        **{"characters": 3, "character_insertions": 0, "character_deletions": 2, "character_substitutions": 1},
    }
    assert pickle.loads(pickle.dumps(score)) == score


def test_what_only_some_sets_have_stands_in_the_line_where_it_is_known() -> None:
    score = replace(score_utterance("u1", "a", "a", None), avg_logprob=-0.5, nbest=({"text": "a"},), language="sr")
    line = score.to_json_dict()
    assert line["duration_s"] is None
    assert [line[name] for name in ("avg_logprob", "nbest", "language")] == [-0.5, ({"text": "a"},), "sr"]


def test_ids_in_any_order_pass() -> None:
    check_ids(["a", "b", "c"], ["c", "a", "b"])


def test_missing_doubled_and_foreign_ids_are_named() -> None:
    with pytest.raises(ScoringError) as caught:
        check_ids(["a", "b", "c", "c"], ["b", "b", "z", "c"])
    message = str(caught.value)
    assert "1 asked for more than once ('c')" in message
    assert "1 not scored ('a')" in message
    assert "1 scored more than once ('b')" in message
    assert "1 scored but not asked for ('z')" in message


def test_only_the_first_ids_are_named() -> None:
    with pytest.raises(ScoringError, match=r"9 not scored \('0', '1', '2', '3', '4', …\)"):
        check_ids([str(i) for i in range(9)], [])
