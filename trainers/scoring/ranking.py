"""Chooses the metric that ranks recognizers of a language, and formats scores. Imports no torch."""

from collections.abc import Iterator, Mapping
from typing import Any

from trainers.config.family_table import decode_parts
from trainers.config.wording import counted
from trainers.metrics.known_metrics import CER, WER, known_metrics
from trainers.metrics.metric import EditCounts
from trainers.models.language_names import code_or_name

# Languages whose usual writing has no space between words, by `code_or_name`. Tibetan and Dzongkha mark syllables.
CODES = """
zh yue wuu nan hak hsn gan cdo lzh
ja
th tts nod
lo
km
my shn
bo
dz
"""
WRITTEN_WITHOUT_SPACES = frozenset(CODES.split())


def ranking_rate(language: str | None) -> str:
    """Returns the name of the metric that ranks recognizers of a language, which scores show first.

    A language is a code or a name: `th`, `zh-TW`, `yue_Hant`, `Thai`, `日本語`.
    """
    return (CER if code_or_name(language or "") in WRITTEN_WITHOUT_SPACES else WER).name


def score_line(
    totals: Mapping[str, Any], what: str, language: str | None, base: Mapping[str, Any] | None = None
) -> str:
    """Returns `WER 4.2% on test (200 utterances) · normalizer basic 1`; if CER ranks, CER comes first, with a note.

    `totals` is a score as in evaluation/<split>.json; if it has several languages, the rates of each follow. For `base`
    see `rates_of`.
    """
    remarks = [f"normalizer {totals['normalizer']} {totals['normalizer_version']}"] if "normalizer" in totals else []
    name, greedy = greedy_score(totals)
    if name is not None:
        remarks.append(f"the {name}'s WER is {_percent(greedy['wer'])}")
    if totals.get("decoding", {}).get("weights_chosen_on_this_set"):
        remarks.append("decode's weights were chosen on this set, so the rate is lower than on others")
    if ranking_rate(language) == CER.name:
        remarks.insert(0, f"CER ranks: {language} is written without spaces between words")
    if len(languages := totals.get("languages", {})) > 1:
        remarks.append("; ".join(f"{code}: {rates_of(score, code)}" for code, score in languages.items()))
    return " · ".join((f"{rates_of(totals, language, base)} on {what}", *remarks))


def greedy_score(totals: Mapping[str, Any]) -> tuple[str | None, Mapping[str, Any]]:
    """Returns name and score of a search's baseline, such as `best path`; without a search, None and `totals`."""
    names = (part.greedy for part in decode_parts().values())
    return next(((name.replace("_", " "), totals[name]) for name in names if name in totals), (None, totals))


def rates_of(totals: Mapping[str, Any], language: str | None, base: Mapping[str, Any] | None = None) -> str:
    """Returns `WER 4.2%`, or `CER 1.3%, WER 4.2%` if CER ranks.

    With `base`, the score before the training: `WER 15.4% → 4.2% (base → tuned)`.
    """
    shown = dict.fromkeys((ranking_rate(language), WER.name))
    before = {name: f"{_percent(base[name])} → " for name in shown} if base is not None else {}
    rates = ", ".join(f"{name.upper()} {before.get(name, '')}{_percent(totals[name])}" for name in shown)
    return f"{rates} (base → tuned)" if before else rates


def score_lines(totals: Mapping[str, Any], language: str | None) -> Iterator[str]:
    """Yields the complete score as lines for people: `score_line`, the counts, and other rates."""
    yield score_line(totals, counted(totals["utterances"], "utterance"), language)
    metrics = known_metrics().values()
    for metric in metrics:
        edits = [key.removeprefix(metric.prefix) for key in metric.of_utterance(EditCounts()) if key != metric.units]
        if edits:
            counts = ", ".join(f"{totals[metric.prefix + edit]} {edit}" for edit in edits)
            yield f"  {totals[metric.units]} {metric.units}: {counts}"
    rates = [f"{metric.name.upper()} {_percent(totals[metric.name])}" for metric in metrics if metric is not WER]
    yield " · ".join([f"  {rates[0]}", *rates[1:], f"{totals['empty_references']} empty references"])


def _percent(rate: float | None) -> str:
    return "undefined" if rate is None else f"{rate:.1f}%"
