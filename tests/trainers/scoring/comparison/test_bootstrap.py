"""Bootstrap intervals: against a plain computation on the same draws, and what SciPy gives on them."""

import numpy as np
import pytest

from trainers.scoring.comparison import bootstrap
from trainers.scoring.comparison.bootstrap import interval, resampled_rates, sums_by

GENERATOR = np.random.default_rng(7)
LENGTHS = GENERATOR.integers(1, 30, 120)
ERRORS = np.stack([GENERATOR.binomial(LENGTHS, rate) for rate in (0.2, 0.15)])


def drawn(resamples: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, len(LENGTHS), (resamples, len(LENGTHS)))


def test_rates_are_those_of_the_drawn_utterances_and_systems_share_each_draw() -> None:
    rates = resampled_rates(ERRORS, LENGTHS, resamples=300, seed=3)
    expected = [
        [100 * errors[chosen].sum() / LENGTHS[chosen].sum() for chosen in drawn(300, seed=3)] for errors in ERRORS
    ]
    assert rates.tolist() == expected


def test_the_memory_that_draws_may_take_moves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = resampled_rates(ERRORS, LENGTHS, resamples=101)
    for drawn_at_once in (1, 250, 1000):
        monkeypatch.setattr(bootstrap, "DRAWN_AT_ONCE", drawn_at_once)
        assert (resampled_rates(ERRORS, LENGTHS, resamples=101) == at_once).all()


def test_intervals_are_those_of_scipy() -> None:
    """What SciPy 1.17.1 gives for the first rate, and for the difference.

    `scipy.stats.bootstrap(data, statistic, paired=True, method="percentile", n_resamples=2000, rng=default_rng(5))`.
    """
    rates = resampled_rates(ERRORS, LENGTHS, resamples=2000, seed=5)
    found = [interval(rates[0]), interval(rates[1] - rates[0])]
    assert found == [
        pytest.approx(expected, abs=1e-9)
        for expected in ((18.68461438907307, 22.199760221644777), (-7.62253421900161, -2.5123148291171056))
    ]


def test_draws_without_a_unit_are_left_out() -> None:
    rates = resampled_rates([[1, 3]], [0, 4], resamples=200)
    found = interval(rates[0])
    assert np.isinf(rates).any() and found is not None
    assert (found.low, found.high) == (75.0, 100.0)
    assert interval(resampled_rates([[1, 1]], [0, 0], resamples=10)[0]) is None


def test_utterances_are_summed_by_speaker() -> None:
    assert sums_by(["b", "a", "b"], [[1, 2, 4], [10, 20, 40]]).tolist() == [[2, 5], [20, 50]]
    # All of one speaker: no interval but the rate itself.
    sums = sums_by(["a"] * len(LENGTHS), np.vstack([ERRORS[:1], LENGTHS[None]]))
    rates = resampled_rates(sums[:1], sums[1], resamples=10)
    assert set(rates[0].tolist()) == {100 * ERRORS[0].sum() / LENGTHS.sum()}
