"""Which setting of a search is chosen."""

import random
from collections.abc import Sequence

from trainers.config.parts.decode_part import Setting
from trainers.metrics.metric import EditCounts
from trainers.models.ctc.ctc_decode_part import Weights
from trainers.scoring.error_rate import Score
from trainers.scoring.tuning import Trial, choose


def trial(weights: Weights, wer: float, cer: float = 10.0) -> Trial:
    rates = {"wer": wer, "cer": cer, "ser": 100.0 - wer}
    counts = {name: EditCounts(deletions=round(10 * rate), reference_length=1000) for name, rate in rates.items()}
    return Trial(weights, Score(1, 1, 0, counts))


def chosen(trials: Sequence[Trial], rate: str = "wer") -> Setting:
    """The choice, whatever the order of the trials."""
    found = {choose(random.Random(seed).sample(trials, len(trials)), rate).setting for seed in range(10)}
    assert len(found) == 1
    return found.pop()


def test_the_lowest_rate_is_chosen_by_the_rate_that_ranks() -> None:
    trials = [trial(Weights(0.0, 0.0), 5.0), trial(Weights(1.0, 2.0), 4.0), trial(Weights(0.5, 1.0), 6.0)]
    assert chosen(trials) == Weights(1.0, 2.0)
    assert chosen(trials, "ser") == Weights(0.5, 1.0)


def test_equal_rates_are_told_apart_by_cer_then_by_the_least_weights() -> None:
    least = [Weights(0.5, 1.0), Weights(0.5, -1.0), Weights(0.5, 2.0), Weights(1.0, 0.0), Weights(0.5, 1.0, 0.5)]
    assert chosen([trial(each, 4.0) for each in least]) == Weights(0.5, -1.0)
    assert chosen([*(trial(each, 4.0) for each in least), trial(Weights(9.0, 9.0, 9.0), 4.0, 9.5)]) == Weights(9, 9, 9)
