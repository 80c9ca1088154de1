"""The section of a report on a scored split: rates with intervals, slices, worst utterances, confusions. Pure."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainers.metrics.known_metrics import CER, WER
from trainers.metrics.metric import EditCounts, Metric
from trainers.scoring.comparison.bootstrap import Interval, rate_interval, sums_by
from trainers.scoring.comparison.matched_pairs import Pair, align
from trainers.scoring.normalizers import NORMALIZERS, Normalizer
from trainers.scoring.ranking import ranking_rate

# Limits for one page, whatever the size of the set.
WORST = 20
CONFUSIONS = 20
SLICES = 25
BOUNDS_S = (0, 2, 5, 10, 20, 30)
EDITS = ("insertions", "deletions", "substitutions")

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Rate:
    """An error rate in percent, and its 95% bootstrap intervals.

    Attributes:
        by_speaker: Interval over speakers, which is wider if their rates differ; None if speakers are not known.
    """

    metric: str
    units: str
    counts: EditCounts
    rate: float | None
    by_utterance: Interval | None
    by_speaker: Interval | None


@dataclass(frozen=True)
class Slice:
    """Utterances with a common property."""

    name: str
    utterances: int
    duration_s: float
    rate: float | None
    interval: Interval | None


@dataclass(frozen=True)
class Slices:
    """Utterances grouped by one property; if there are many groups, those with the most errors are shown."""

    by: str
    shown: Sequence[Slice]
    different: int


@dataclass(frozen=True)
class Utterance:
    """An utterance with aligned words: pairs of reference and hypothesis."""

    id: str
    pairs: Sequence[Pair]
    errors: int
    length: int
    duration_s: float | None
    speaker: str | None
    audio: str | None = None


@dataclass(frozen=True)
class ScoreSection:
    """The results of one split.

    Attributes:
        ranking: Name of the metric that ranks recognizers of the language.
        speakers: Number of known speakers.
        words: Pairs of a word and what was recognized instead, with counts; None stands for no word.
        characters: Such pairs of characters within substituted words.
    """

    split: str
    of: str
    totals: Mapping[str, Any]
    scored: int
    ranking: str
    speakers: int
    rates: Sequence[Rate]
    slices: Sequence[Slices]
    worst: Sequence[Utterance]
    words: Sequence[tuple[Pair, int]]
    characters: Sequence[tuple[Pair, int]]


def score_section(
    split: str,
    of: str,
    totals: Mapping[str, Any],
    rows: Sequence[Row],
    *,
    language: str | None,
    speakers: Mapping[str, str],
    slices: Mapping[str, Mapping[str, str]],
) -> ScoreSection:
    """Returns the results of the rows of evaluation/<split>.jsonl; speakers and values of slice columns are by id."""
    ranking = {WER.name: WER, CER.name: CER}[ranking_rate(language)]
    names = [speakers.get(row["id"]) for row in rows]
    rates = [rate_of(metric, rows, names) for metric in dict.fromkeys((ranking, WER, CER))]
    normalize = NORMALIZERS.get(str(totals.get("normalizer")), NORMALIZERS["none"])
    words, characters = _confusions(rows, normalize)
    return ScoreSection(
        split,
        of,
        totals,
        len(rows),
        ranking.name,
        len({*filter(None, names)}),
        rates,
        [*_all_slices(rows, names, ranking), *_column_slices(rows, slices, ranking)],
        [_utterance(row, normalize, speakers) for row in _worst(rows, ranking)],
        words.most_common(CONFUSIONS),
        characters.most_common(CONFUSIONS),
    )


def _counts(row: Row, metric: Metric) -> EditCounts:
    insertions, deletions, substitutions = (int(row.get(f"{metric.prefix}{name}", 0)) for name in EDITS)
    return EditCounts(insertions, deletions, substitutions, int(row.get(metric.units, 0)))


def _columns(rows: Iterable[Row], metric: Metric) -> np.ndarray:
    """Returns errors and lengths, shape (2, utterances)."""
    counts = [_counts(row, metric) for row in rows]
    return np.array([[item.errors for item in counts], [item.reference_length for item in counts]])


def rate_of(metric: Metric, rows: Sequence[Row], speakers: Sequence[str | None]) -> Rate:
    """Returns the rate, with intervals, of rows that have the metric's edits; an unknown speaker is None."""
    total = sum((_counts(row, metric) for row in rows), EditCounts())
    columns = _columns(rows, metric)
    by_speaker = None
    if all(speakers) and len({*speakers}) > 1:
        by_speaker = rate_interval(*sums_by([str(name) for name in speakers], columns))
    return Rate(metric.name, metric.units, total, metric.rate(total), rate_interval(*columns), by_speaker)


def _all_slices(rows: Sequence[Row], speakers: Sequence[str | None], metric: Metric) -> Iterator[Slices]:
    languages = [row.get("language") for row in rows]
    durations = [_length_class(row.get("duration_s")) for row in rows]
    if len({*languages}) > 1:
        yield _slices("language", rows, languages, metric, lambda found: found.name)
    if any(durations):
        shortest = {_length_class(bound): bound for bound in BOUNDS_S}
        yield _slices("duration", rows, durations, metric, lambda found: shortest.get(found.name, -1))
    if any(speakers):
        yield _slices("speaker", rows, speakers, metric, lambda found: -(found.rate or 0.0))


def _column_slices(rows: Sequence[Row], values: Mapping[str, Mapping[str, str]], metric: Metric) -> Iterator[Slices]:
    own = [values.get(row["id"], {}) for row in rows]
    for column in dict.fromkeys(name for of_row in own for name in of_row):
        names = [of_row.get(column) for of_row in own]
        yield _slices(column, rows, names, metric, lambda found: -(found.rate or 0.0))


def _slices(
    by: str, rows: Sequence[Row], names: Sequence[str | None], metric: Metric, order: Callable[[Slice], Any]
) -> Slices:
    of_each: dict[str, list[Row]] = {}
    for row, name in zip(rows, names, strict=True):
        of_each.setdefault(name or "not known", []).append(row)
    # Chosen before the intervals are computed, since computing them takes long.
    largest = sorted(of_each, key=lambda name: -int(_columns(of_each[name], metric)[0].sum()))[:SLICES]
    found = [_slice(name, of_each[name], metric) for name in largest]
    return Slices(by, sorted(found, key=order), len(of_each))


def _slice(name: str, rows: Sequence[Row], metric: Metric) -> Slice:
    total = sum((_counts(row, metric) for row in rows), EditCounts())
    duration_s = sum(row.get("duration_s") or 0.0 for row in rows)
    drawn = rate_interval(*_columns(rows, metric)) if len(rows) > 1 else None
    return Slice(name, len(rows), duration_s, metric.rate(total), drawn)


def _length_class(duration_s: float | None) -> str | None:
    """Returns `5 to 10 s` or `30 s and more`; None if the duration is not known."""
    if duration_s is None:
        return None
    low = max(bound for bound in BOUNDS_S if bound <= duration_s)
    longer = [bound for bound in BOUNDS_S if bound > low]
    return f"{low} to {longer[0]} s" if longer else f"{low} s and more"


def _worst(rows: Sequence[Row], metric: Metric) -> list[Row]:
    """Returns the rows with the most errors, of ties those with the shortest references first."""
    counted = [(counts, row) for row in rows if (counts := _counts(row, metric)).errors]
    counted.sort(key=lambda item: (-item[0].errors, item[0].reference_length))
    return [row for _, row in counted[:WORST]]


def _utterance(row: Row, normalize: Normalizer, speakers: Mapping[str, str]) -> Utterance:
    counts = _counts(row, WER)
    pairs = align(normalize(row["reference"]).split(), normalize(row["hypothesis"]).split())
    duration_s = row.get("duration_s")
    return Utterance(row["id"], pairs, counts.errors, counts.reference_length, duration_s, speakers.get(row["id"]))


def _confusions(rows: Iterable[Row], normalize: Normalizer) -> tuple[Counter[Pair], Counter[Pair]]:
    """Counts pairs of words that differ, and of characters within substituted words."""
    words: Counter[Pair] = Counter()
    for row in rows:
        if _counts(row, WER).errors:
            pairs = align(normalize(row["reference"]).split(), normalize(row["hypothesis"]).split())
            words.update(pair for pair in pairs if pair[0] != pair[1])
    characters: Counter[Pair] = Counter()
    for (word, other), count in words.items():
        if word is not None and other is not None:
            for pair in align(word, other):
                if pair[0] != pair[1]:
                    characters[pair] += count
    return words, characters
