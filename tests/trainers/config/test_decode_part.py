"""Fields of decode that contradict each other, and the weights that they come to."""

from typing import Any

import pytest

from tests.trainers.synthetic import config
from trainers.errors import ConfigError
from trainers.models.ctc.ctc_decode_part import CtcDecodePart, Weights

CTC = {"init": "scratch", "family": "ctc"}


def test_the_best_path_is_the_default_and_has_nothing_to_choose() -> None:
    part = config({"model": CTC}).decode
    assert isinstance(part, CtcDecodePart) and not part.is_tuned and part.settings == []


@pytest.mark.parametrize(
    ("fields", "grid"),
    [
        ({}, [Weights()]),
        ({"lexicon": "/words"}, [Weights(0, each, 0) for each in (-1.0, 0.0, 1.0, 2.0)]),
        ({"lm": "/lm", "lm_weight": 0.5, "word_score": [1, 0]}, [Weights(0.5, 1.0), Weights(0.5, 0.0)]),
        ({"lm": "/lm", "lm_weight": 0.5, "word_score": 1}, [Weights(0.5, 1.0)]),
        ({"rescoring_model": "/gpt", "word_score": 0, "rescoring_weight": [0, 2]}, [Weights(), Weights(0, 0, 2)]),
    ],
)
def test_every_combination_of_what_there_is_is_tried(fields: dict[str, Any], grid: list[Weights]) -> None:
    part = CtcDecodePart.model_validate({"method": "beam", **fields})
    assert part.settings == grid and part.is_tuned == (len(grid) > 1)


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"lm": "/lm.arpa"}, "lm set, but method is greedy"),
        ({"method": "beam", "lm_weight": 1}, "lm_weight set, but lm is null"),
        ({"method": "beam", "lexicon": "/w", "lm_unit": "tokens"}, "lm_unit set, but lm is null"),
        ({"method": "beam", "lexicon": "/w", "lm": "/l", "lm_unit": "tokens"}, "lexicon is of words"),
        ({"method": "beam", "rescoring_weight": 1}, "rescoring_weight set, but rescoring_model is null"),
        ({"method": "beam", "word_score": 1}, "lexicon, lm and rescoring_model are null"),
        ({"method": "beam", "lm": "/l", "lm_weight": [1, 1]}, "names a value twice"),
        ({"method": "beam", "lm": "/l", "lm_weight": []}, "at least 1 item"),
        ({"method": "beam", "lm": "/l", "lm_weight": -1}, "greater than or equal to 0"),
        ({"method": "beam", "lm": "hdfs://b/l"}, "hdfs://"),
    ],
)
def test_fields_that_contradict_each_other_are_refused(fields: dict[str, Any], wanted: str) -> None:
    with pytest.raises(ConfigError, match=wanted):
        config({"model": CTC} | {f"decode.{name}": value for name, value in fields.items()})
