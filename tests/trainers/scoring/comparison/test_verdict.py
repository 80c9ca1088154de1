"""A model is judged by matched pairs, however few or alike they are."""

import pytest

from trainers.scoring.comparison.comparison import compare_named
from trainers.scoring.comparison.systems import System
from trainers.scoring.comparison.verdict import Judgment, Verdict

WORDS, ERRORS = 200, 40


def verdict(base_errors: int, tuned_errors: int, words: int = WORDS) -> Verdict:
    """Judges models that recognize one-word utterances; each model is wrong on the first ones."""
    ids = [str(number) for number in range(words)]

    def system(name: str, errors: int) -> System:
        texts = {id_: "wrong" if number < errors else "word" for number, id_ in enumerate(ids)}
        return System(name, texts, dict.fromkeys(ids, "word"))

    found = Verdict.of(compare_named([system("base", base_errors), system("tuned", tuned_errors)], "none", "wer"))
    assert found is not None
    return found


def test_a_model_is_better_although_each_utterance_improves_by_the_same() -> None:
    found = verdict(ERRORS, 0)
    assert found.judgment is Judgment.BETTER and found.p == pytest.approx(2 ** (1 - ERRORS))
    assert str(found).startswith("better: WER -20.00 points") and str(found).endswith("p < 0.001")


def test_it_is_worse_although_each_utterance_suffers_by_the_same() -> None:
    assert verdict(0, ERRORS).judgment is Judgment.WORSE


def test_few_utterances_tell_no_models_apart() -> None:
    found = verdict(2, 0, words=2)
    assert found.judgment is Judgment.NOT_TOLD_APART and found.p == pytest.approx(0.5)
    assert str(found).endswith("p = 0.500 (they differ in 2 segments, too few to tell)")


def test_six_utterances_can_tell_models_apart() -> None:
    assert verdict(5, 0, words=5).has_too_few
    six = verdict(6, 0, words=6)
    assert six.judgment is Judgment.BETTER and not six.has_too_few


def test_equal_models_are_not_told_apart() -> None:
    assert verdict(ERRORS, ERRORS).judgment is Judgment.NOT_TOLD_APART
