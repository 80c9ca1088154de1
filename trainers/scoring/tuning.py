"""Weights of a beam search, chosen on the validation set."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from trainers.config.parts.decode_part import Weights
from trainers.metrics.known_metrics import CER, known_metrics
from trainers.scoring.error_rate import Score
from trainers.scoring.scorer import SplitScore


class Trial(NamedTuple):
    """What some weights came to on the validation set."""

    weights: Weights
    score: Score

    def to_json_dict(self) -> dict[str, Any]:
        lm, word, rescoring = self.weights
        return {"lm_weight": lm, "word_score": word, "rescoring_weight": rescoring, **self.score.rates}


@dataclass(frozen=True)
class Tuning:
    """Weights that were tried, the best of them, and the score of the best path, without a search."""

    trials: tuple[Trial, ...]
    best: Trial
    best_path: Score

    def line(self, rate: str) -> str:
        """What was chosen, for a person; `rate` as of `tune`."""
        lm, word, rescoring = self.best.weights
        before, after = self.best_path.rates[rate], self.best.score.rates[rate]
        return (
            f"lm_weight {lm:g}, word_score {word:g}, rescoring_weight {rescoring:g}, the best of {len(self.trials)} on "
            f"validation: {rate.upper()} {after:.1f}%; the best path's is {before:.1f}%"
        )

    def to_json_dict(self) -> dict[str, Any]:
        """What stands in evaluation/decoding.json."""
        return {
            "chosen": self.best.to_json_dict(),
            "best_path": self.best_path.rates,
            "trials": [trial.to_json_dict() for trial in self.trials],
        }


def tune(grid: Sequence[Weights], rate: str, score: Callable[[tuple[Weights, ...]], SplitScore]) -> Tuning:
    """Tries all weights in one pass over the validation set, whose outputs are computed once."""
    result = score(tuple(grid))
    assert result.best_path is not None
    trials = tuple(Trial(*each) for each in zip(grid, (result.score, *result.alternative_scores), strict=True))
    return Tuning(trials, choose(trials, rate), result.best_path)


def choose(trials: Sequence[Trial], rate: str) -> Trial:
    """The trial of the best rate; of equal ones that of the lowest CER, then of the least weights."""
    sign = -1 if known_metrics()[rate].order == "max" else 1

    def rank(trial: Trial) -> tuple[float, ...]:
        (lm, word, rescoring), rates = trial.weights, trial.score.rates
        return sign * (rates[rate] or 0.0), rates[CER.name] or 0.0, lm, rescoring, abs(word), word

    return min(trials, key=rank)
