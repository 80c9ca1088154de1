"""Judges whether a training made a model better on a set, by matched pairs of utterances. Pure."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Self

from trainers.config.wording import counted
from trainers.scoring.comparison.bootstrap import Interval
from trainers.scoring.comparison.comparison import SIGNIFICANT, Comparison
from trainers.scoring.comparison.matched_pairs import p_value


class Judgment(StrEnum):
    """The outcome of a comparison: better or worse by more than chance, or not told apart."""

    BETTER = "better"
    WORSE = "worse"
    NOT_TOLD_APART = "not told apart"


@dataclass(frozen=True)
class Verdict:
    """The comparison of a tuned model with the weights that its run began with, on one set.

    Attributes:
        metric: The metric that ranks models of the language.
        base: Its rate before the training, in percent.
        tuned: Its rate after the training, in percent.
        difference: `tuned` minus `base`, in percentage points.
        interval: 95% bootstrap interval of the difference over utterances; None if the references are empty.
        p: Two-sided p-value of the matched-pairs test, exact also for few segments (`matched_pairs.exchange_p`).
        segments: Number of segments in which the models do not make equally many errors.
    """

    judgment: Judgment
    metric: str
    base: float
    tuned: float
    difference: float
    interval: Interval | None
    p: float
    segments: int

    @classmethod
    def of(cls, comparison: Comparison) -> Self | None:
        """Judges the second system of a comparison against the first; returns None if the references are empty."""
        (base, tuned), (pair,) = comparison.systems, comparison.paired
        if base.rate is None or tuned.rate is None or pair.difference is None:
            return None
        judgment, p = Judgment.NOT_TOLD_APART, pair.test.exact_p
        if p < SIGNIFICANT:
            judgment = Judgment.BETTER if pair.test.mean > 0 else Judgment.WORSE
        rates, differing = (base.rate, tuned.rate, pair.difference), pair.test.differing
        return cls(judgment, comparison.metric, *rates, pair.interval, p, differing)

    @classmethod
    def of_json_dict(cls, content: Mapping[str, Any]) -> Self:
        interval = content["interval"]
        known = {**content, "judgment": Judgment(content["judgment"])}
        return cls(**{**known, "interval": Interval(*interval) if interval is not None else None})

    def to_json_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        """Returns `better: WER -5.60 points (95%: -8.10 to -3.20), p < 0.001`."""
        bounds = f" (95%: {self.interval.low:+.2f} to {self.interval.high:+.2f})" if self.interval is not None else ""
        few = f" (they differ in {counted(self.segments, 'segment')}, too few to tell)" if self.has_too_few else ""
        return f"{self.judgment}: {self.metric.upper()} {self.difference:+.2f} points{bounds}, {p_value(self.p)}{few}"

    @property
    def has_too_few(self) -> bool:
        """True if models that differ in as few segments are never told apart, even if all favor the same model."""
        return self.segments > 0 and 2 * 0.5**self.segments >= SIGNIFICANT
