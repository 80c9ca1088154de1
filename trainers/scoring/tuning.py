"""Chooses the setting of a search on the validation set."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from trainers.config.parts.decode_part import DecodePart, Setting
from trainers.metrics.known_metrics import CER, known_metrics
from trainers.scoring.error_rate import Score
from trainers.scoring.scorer import SplitScore


class Trial(NamedTuple):
    """The score of a setting on the validation set."""

    setting: Setting
    score: Score

    def to_json_dict(self) -> dict[str, Any]:
        return {**self.setting.to_json_dict(), **self.score.rates}


@dataclass(frozen=True)
class Tuning:
    """The tried settings, the best of them, and the score without a search, with the name of that score in files."""

    trials: tuple[Trial, ...]
    best: Trial
    greedy: Score
    name: str

    def line(self, rate: str) -> str:
        """Describes the choice for people; `rate` as in `tune`."""
        chosen = ", ".join(f"{name} {value:g}" for name, value in self.best.setting.to_json_dict().items())
        before, after = self.greedy.rates[rate], self.best.score.rates[rate]
        return (
            f"{chosen}, the best of {len(self.trials)} on validation: {rate.upper()} {after:.1f}%; "
            f"the {self.name.replace('_', ' ')}'s is {before:.1f}%"
        )

    def to_json_dict(self) -> dict[str, Any]:
        """Returns the content of evaluation/decoding.json."""
        return {
            "chosen": self.best.to_json_dict(),
            self.name: self.greedy.rates,
            "trials": [trial.to_json_dict() for trial in self.trials],
        }


def tune(part: DecodePart, rate: str, score: Callable[[tuple[Setting, ...]], SplitScore]) -> Tuning:
    """Tries all settings in one pass over the validation set, whose outputs are computed once."""
    settings = tuple(part.settings)
    result = score(settings)
    assert result.greedy is not None
    scores = (result.score, *result.by_other_settings)
    trials = tuple(Trial(*each) for each in zip(settings, scores, strict=True))
    return Tuning(trials, choose(trials, rate), result.greedy, part.greedy)


def choose(trials: Sequence[Trial], rate: str) -> Trial:
    """Returns the trial with the best rate, of ties the one with the lowest CER, then with the first setting."""
    sign = -1 if known_metrics()[rate].order == "max" else 1

    def rank(trial: Trial) -> tuple[float, ...]:
        rates = trial.score.rates
        return sign * (rates[rate] or 0.0), rates[CER.name] or 0.0, *trial.setting.order

    return min(trials, key=rank)
