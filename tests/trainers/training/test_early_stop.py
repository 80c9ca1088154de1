"""Patience counts validations since the best one."""

import math
from typing import Literal

import pytest

from trainers.training.early_stop import Patience


@pytest.mark.parametrize(
    ("order", "scores", "since_best"),
    [
        ("min", [], 0),
        ("min", [20.0, 10.0], 0),
        ("min", [10.0, 20.0, 15.0], 2),
        # An equal score is no improvement.
        ("min", [10.0, 10.0], 1),
        ("min", [math.nan, 10.0, math.nan], 1),
        ("max", [0.1, 0.2], 0),
        ("max", [0.2, 0.1, 0.2], 2),
    ],
)
def test_validations_since_the_best_are_counted(
    order: Literal["min", "max"], scores: list[float], since_best: int
) -> None:
    assert Patience(3, order, scores).since_best == since_best


def test_it_is_exhausted_after_as_many_validations() -> None:
    patience = Patience(2, "min", [10.0, 11.0])
    assert not patience.is_exhausted
    patience.add(12.0)
    assert patience.is_exhausted
    assert not Patience(None, "min", [10.0, *[11.0] * 100]).is_exhausted
