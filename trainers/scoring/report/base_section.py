"""The section of a report that compares a model with the weights that its run began with, and with others. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainers.config.parts.conditions import SOUND_SETS, VALIDATION
from trainers.run_folder.checkpoints import REFUSED
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
class CandidateRow:
    """Weights that a run has scored on its validation set to choose those of its model.

    Attributes:
        rates: Rates by name: the one that ranks, then those of the sets of checkpoint.refuse_if.
        note: `chosen`, `refused`, or "".
    """

    name: str
    rates: Mapping[str, str]
    note: str


@dataclass(frozen=True)
class BaseSection:
    """The comparison of a model with its base, and the weights from which it was chosen.

    Attributes:
        candidates: Empty if the run has exported its best checkpoint without a choice.
        distances: Distance of each layer's weights from the base's, see `layer_distances`.
    """

    changes: Sequence[Change]
    candidates: Sequence[CandidateRow]
    distances: Mapping[str, float]


def base_section(result: Mapping[str, Any], language: str | None) -> BaseSection | None:
    """Returns the section of a run's result, the content of result.json.

    Returns None if its base was not scored, and its weights were not chosen from several.
    """
    changes = [*_changes(result, language)] if result.get("base") else []
    candidates = [*_candidates(result["weights"])] if result.get("weights") else []
    return BaseSection(changes, candidates, result.get("layer_distances") or {}) if changes or candidates else None


def _candidates(weights: Mapping[str, Any]) -> Iterator[CandidateRow]:
    of_sets = ("_wer", "_words_per_minute")
    for each in weights["candidates"]:
        further = [
            name for name in each if name.endswith(of_sets) and "full_context" not in name and name != "eval_wer"
        ]
        rates = {
            name.removeprefix("eval_").replace("_", " "): f"{each[name]:.2f}" for name in (weights["ranks"], *further)
        }
        note = "refused" if each.get(REFUSED) else "chosen" if each["name"] == weights["name"] else ""
        yield CandidateRow(each["name"], rates, note)


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
