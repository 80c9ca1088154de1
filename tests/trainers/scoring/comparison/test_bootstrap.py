"""Bootstrap intervals: against a plain computation on the same draws, and what SciPy gives on them."""

import numpy as np
import pytest

from trainers.metrics.known_metrics import WER
from trainers.scoring.comparison import bootstrap
from trainers.scoring.comparison.bootstrap import interval, rate_interval, resampled_rates, sums_by
from trainers.scoring.comparison.comparison import compare
from trainers.scoring.comparison.systems import System
from trainers.scoring.error_rate import score_texts
from trainers.scoring.normalizers import normalizer_named
from trainers.scoring.report.score_section import rate_of, score_section

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


def test_a_run_has_one_interval_in_its_report_its_card_and_a_comparison() -> None:
    references = {f"u{number}": " ".join(["word"] * int(length)) for number, length in enumerate(LENGTHS)}
    hypotheses = {
        f"u{number}": " ".join(["word"] * int(length - errors))
        for number, (length, errors) in enumerate(zip(LENGTHS, ERRORS[0], strict=True))
    }
    normalize = normalizer_named("none")
    totals, scores = score_texts([*hypotheses.values()], [*references.values()], normalize, ids=[*references])
    rows = [score.to_json_dict() for score in scores]
    section = score_section("test", "x", totals.to_json_dict(), rows, language="English", speakers={}, slices={})
    # Other systems have utterances in an order of their own, and share draws with others.
    shuffled = {id: references[id] for id in sorted(references)}
    systems = [System("other", shuffled, shuffled), System("run", hypotheses, references)]
    compared = compare(systems, shuffled, normalize, WER).systems[1]
    assert compared.interval == section.rates[0].by_utterance == rate_of(WER, rows, [None] * len(rows)).by_utterance
    assert compared.interval == rate_interval(ERRORS[0][::-1], LENGTHS[::-1])
