"""The suggested learning rate is a tenth of the one with the lowest smoothed loss."""

import math
from itertools import pairwise

import pytest

from trainers.training.trainer.rate_sweep import HIGHEST, LOWEST, STEPS, Suggestion, rates, smoothed


def losses_with_their_least_at(rate: float, steps: int = STEPS) -> list[float]:
    return [2 + (math.log10(each) - math.log10(rate)) ** 2 / 10 for each in rates()[:steps]]


def test_rates_rise_in_equal_ratios() -> None:
    found = rates()
    assert len(found) == STEPS
    assert (found[0], found[-1]) == pytest.approx((LOWEST, HIGHEST))
    ratios = [after / before for before, after in pairwise(found)]
    assert max(ratios) == pytest.approx(min(ratios))


def test_the_mean_of_equal_losses_is_the_loss() -> None:
    assert smoothed([3.0] * 5) == pytest.approx([3.0] * 5)


def test_a_tenth_of_the_best_rate_is_suggested() -> None:
    found = Suggestion.of(losses_with_their_least_at(1e-3))
    assert found is not None
    # Smoothing follows the losses by a few steps.
    assert 1e-3 <= found.lowest <= 4e-3
    assert found.rate == pytest.approx(found.lowest / 10, rel=0.05)
    assert found.diverges is None


def test_a_sweep_that_ended_early_tells_from_which_rate_on() -> None:
    found = Suggestion.of([*losses_with_their_least_at(1e-4, 40), math.nan])
    assert found is not None and found.diverges == rates()[40]


@pytest.mark.parametrize("losses", [[], [1.0], [1.0, 2.0, 3.0], [math.nan, math.nan]])
def test_without_a_loss_that_falls_nothing_is_suggested(losses: list[float]) -> None:
    assert Suggestion.of(losses) is None
