"""The metrics of `scoring.metrics`, loaded only from the sources in the recipe.

Loading a metric runs its code, so nothing is downloaded: a metric of the Hub must be in the node's cache.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

from trainers.errors import ConfigError, ScoringError

# Texts on which each metric is tried before anything is prepared; a model's first hypotheses are often empty.
TRIAL_HYPOTHESES = ("the cat sat", "")
TRIAL_REFERENCES = ("the cat sat down", "on the mat")


@dataclass
class RecipeMetrics:
    """The metrics by name, which are loaded from their sources when they are first computed, in one process."""

    sources: Mapping[str, str]
    _loaded: dict[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        """Computes each metric once; raises ConfigError if a metric cannot be loaded, fails, or returns no number."""
        try:
            self.compute(TRIAL_HYPOTHESES, TRIAL_REFERENCES)
        except ScoringError as error:
            raise ConfigError(f"{error} (tried on {TRIAL_HYPOTHESES} for {TRIAL_REFERENCES})") from error

    def compute(self, hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, float]:
        """Computes each metric on normalized texts; returns the numbers by name.

        Raises ConfigError if a metric cannot be loaded, and ScoringError if a metric fails, or does not return a finite
        number.
        """
        return {name: self._number(name, hypotheses, references) for name in self.sources}

    def _number(self, name: str, hypotheses: Sequence[str], references: Sequence[str]) -> float:
        label = f"scoring.metrics.{name}: {self.sources[name]}"
        if name not in self._loaded:
            self._loaded[name] = _load(label, self.sources[name])
        try:
            result = self._loaded[name].compute(predictions=list(hypotheses), references=list(references))
        except Exception as error:
            raise ScoringError(f"{label} failed: {type(error).__name__}: {error}") from error
        # A number itself, the value under the metric's name, or the only value.
        only = next(iter(result.values())) if isinstance(result, Mapping) and len(result) == 1 else None
        number = result.get(name, only) if isinstance(result, Mapping) else result
        if not isinstance(number, Real):
            keys = f" of {', '.join(map(str, result))}" if isinstance(result, Mapping) else ""
            raise ScoringError(
                f"{label} returns {type(result).__name__}{keys}, in which no number is found: return one number, or a "
                f"dict that has it under {name!r}"
            )
        if not math.isfinite(number):
            raise ScoringError(f"{label} returns {float(number)}, which is not a finite number")
        return float(number)


def _load(label: str, source: str) -> Any:
    # Imported here, since a training without metrics in its recipe does not need `evaluate`.
    from trainers.scoring.metrics import load_metric  # noqa: PLC0415

    try:
        return load_metric(source)
    except Exception as error:
        raise ConfigError(
            f"{label} cannot be loaded: {type(error).__name__}: {error}; driver and workers need it with all that it "
            "imports (job.runtime_env brings the working directory and packages), and nothing is downloaded"
        ) from error
