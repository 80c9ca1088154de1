"""Conditions of checkpoint.refuse_if are parsed, and refuse what they say."""

import pytest

from tests.trainers.synthetic import config
from trainers.config.parts.conditions import Condition
from trainers.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "rate", "reason"),
    [
        ("> base + 1.0", 11.0, None),
        ("> base + 1.0", 11.1, "validation.wer is 11.10, more than 11.00 (base 10.00 +1.00)"),
        ("> base", 10.0, None),
        ("> base", 10.5, "validation.wer is 10.50, more than 10.00 (base 10.00)"),
        (">base-2", 8.5, "validation.wer is 8.50, more than 8.00 (base 10.00 -2.00)"),
        ("> 30", 30.0, None),
        ("> 30", 30.01, "validation.wer is 30.01, more than 30.00"),
    ],
)
def test_a_rate_above_its_limit_is_refused(text: str, rate: float, reason: str | None) -> None:
    condition = Condition.parse("validation.wer", text)
    assert condition.refusal({"eval_wer": rate}, {"eval_wer": 10.0}) == reason


def test_guards_have_their_own_metrics_and_a_missing_rate_refuses_nothing() -> None:
    condition = Condition.parse("silence.words_per_minute", "> base + 2")
    base = {"eval_silence_words_per_minute": 1.0}
    assert condition.refusal({"eval_silence_words_per_minute": 3.5}, base) is not None
    assert condition.refusal({"eval_wer": 50.0}, base) is None


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("validation.loss", "> base"),
        ("wer", "> 3"),
        ("silence.wer", "> 3"),
        ("validation.wer", "< 3"),
        ("validation.wer", "> base * 2"),
        ("validation.wer", "> nan"),
        ("validation.wer", ""),
    ],
)
def test_anything_else_is_refused_by_its_name(name: str, text: str) -> None:
    with pytest.raises(ValueError, match=name.replace(".", r"\.")):
        Condition.parse(name, text)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("test.wer", "a condition on test, which is not scored at validations: name one of validation, silence, noise"),
        ("new_speakers.wer", "a condition on new_speakers, which is not scored at validations"),
        ("phone.wer", "a condition on phone: set evaluate.also.phone to its manifest"),
        ("silence.words_per_minute", "a condition on silence: set evaluate.guard: default, which scores it"),
    ],
)
def test_a_set_that_is_not_scored_is_refused_with_the_fix(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace(".", r"\.")):
        config({"checkpoint.refuse_if": {name: "> 5"}})
