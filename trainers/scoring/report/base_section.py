"""The section of a report that compares a model with the weights that its run began with. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainers.config.parts.conditions import SOUND_SETS, VALIDATION
from trainers.scoring.comparison.verdict import Verdict
from trainers.scoring.ranking import ranking_rate


@dataclass(frozen=True)
class Change:
    """The rates of one set before and after the training.

    Attributes:
        rate: The name of the rate.
        verdict: The judgment with its interval; "" without one.
    """

    set: str
    rate: str
    base: str
    tuned: str
    verdict: str


@dataclass(frozen=True)
class BaseSection:
    """The comparison of a model with its base.

    Attributes:
        distances: Distance of each layer's weights from the base's, see `layer_distances`.
    """

    changes: Sequence[Change]
    distances: Mapping[str, float]


def base_section(result: Mapping[str, Any], language: str | None) -> BaseSection | None:
    """Returns the section of a run's result, the content of result.json; None if its base was not scored."""
    if not result.get("base"):
        return None
    return BaseSection([*_changes(result, language)], result.get("layer_distances") or {})


def _changes(result: Mapping[str, Any], language: str | None) -> Iterator[Change]:
    after = {VALIDATION: _validation(result), "test": result.get("test"), **(result.get("guards") or {})}
    verdicts = {name: Verdict.of_json_dict(each) for name, each in (result.get("verdicts") or {}).items()}
    for name in dict.fromkeys([*result["base"], *verdicts]):
        if (verdict := verdicts.get(name)) is not None:
            yield Change(name, verdict.metric.upper(), _percent(verdict.base), _percent(verdict.tuned), str(verdict))
        elif (tuned := after.get(name)) is not None and (rates := _rates(name, result["base"][name], tuned, language)):
            yield Change(name, *rates, "")


def _rates(
    name: str, base: Mapping[str, Any], tuned: Mapping[str, Any], language: str | None
) -> tuple[str, str, str] | None:
    """Returns the name of a rate, and its values before and after; None if both models were not scored alike."""
    if name in SOUND_SETS:
        return "words per minute", f"{base['words_per_minute']:.1f}", f"{tuned['words_per_minute']:.1f}"
    metric = ranking_rate(base.get("language", language))
    before = base.get("full_context") or base
    after = tuned.get("full_context") if "full_context" in base else tuned
    return (metric.upper(), _percent(before.get(metric)), _percent(after.get(metric))) if after is not None else None


def _validation(result: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the scores of the validation set as totals of a set, from the metrics of the exported weights."""
    metrics = result.get("validation") or {}
    full = {
        name.removeprefix("eval_full_context_"): value
        for name, value in metrics.items()
        if name.startswith("eval_full_context_")
    }
    own = {name.removeprefix("eval_"): value for name, value in metrics.items()}
    return {**own, "full_context": full or None}


def _percent(rate: float | None) -> str:
    return "undefined" if rate is None else f"{rate:.2f}%"
