"""Compares systems with the first of them, utterance by utterance. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from trainers.config.wording import counted
from trainers.errors import ConfigError
from trainers.metrics.known_metrics import CER, WER
from trainers.metrics.metric import EditCounts, Metric
from trainers.scoring.comparison import bootstrap
from trainers.scoring.comparison.bootstrap import Interval
from trainers.scoring.comparison.matched_pairs import MatchedPairs, matched_pairs, p_value
from trainers.scoring.comparison.systems import System, common_normalizer, common_references, language_of
from trainers.scoring.error_rate import count_edits
from trainers.scoring.normalizers import Normalizer
from trainers.scoring.ranking import ranking_rate

SIGNIFICANT = 0.05


@dataclass(frozen=True)
class SystemScore:
    """A system's score, at the short context if there are two, with its bootstrap interval over utterances.

    Attributes:
        full_context_rate: Rate at the full context with the same normalizer; None without such a score.
    """

    name: str
    counts: EditCounts
    rate: float | None
    interval: Interval | None
    full_context_rate: float | None = None


@dataclass(frozen=True)
class Paired:
    """Comparison of a system with the first system.

    Attributes:
        difference: Its rate minus the first system's, in percentage points.
        interval: Bootstrap interval of the difference; both systems share each draw.
        wins: Number of utterances with fewer errors than the first system.
        test: Test of whether the difference may be due to chance.
    """

    name: str
    difference: float | None
    interval: Interval | None
    wins: int
    losses: int
    ties: int
    test: MatchedPairs

    def verdict(self, first: str, units: str) -> str:
        """Returns `b has significantly fewer errors than a: p = 0.003, z = 2.97 (matched pairs, 9 segments)`."""
        test = self.test
        how = f"matched pairs, {counted(test.segments, 'segment')} of {units}"
        if test.p is None or test.z is None:
            return f"{self.name} and {first}: no test; each segment has the same difference ({how})"
        p = p_value(test.p)
        if test.p >= SIGNIFICANT:
            return f"{self.name} and {first} do not differ significantly: {p}, z = {test.z:.2f} ({how})"
        fewer = "fewer" if test.z > 0 else "more"
        return f"{self.name} has significantly {fewer} errors than {first}: {p}, z = {test.z:.2f} ({how})"


@dataclass(frozen=True)
class Comparison:
    """Comparison of systems on one set, by one metric.

    Attributes:
        errors: Errors of each system in each utterance.
        paired: Comparisons of each other system with the first.
    """

    metric: str
    units: str
    normalizer: Normalizer
    ids: Sequence[str]
    references: Sequence[str]
    hypotheses: Sequence[Sequence[str]]
    errors: Sequence[Sequence[int]]
    systems: Sequence[SystemScore]
    paired: Sequence[Paired]

    @property
    def has_full_context(self) -> bool:
        """True if a system also has a score at its full context."""
        return any(score.full_context_rate is not None for score in self.systems)

    def to_json_dict(self) -> dict[str, Any]:
        """Returns all content except the utterances."""
        scores = {
            score.name: {
                **asdict(score.counts),
                "errors": score.counts.errors,
                "rate": score.rate,
                "interval": score.interval,
                "full_context_rate": score.full_context_rate,
            }
            for score in self.systems
        }
        return {
            "metric": self.metric,
            **self.normalizer.to_json_dict(),
            "utterances": len(self.ids),
            self.units: self.systems[0].counts.reference_length,
            "bootstrap": {
                "level": bootstrap.LEVEL,
                "resamples": bootstrap.RESAMPLES,
                "seed": bootstrap.SEED,
                "over": "utterances",
            },
            "systems": scores,
            "against": self.systems[0].name,
            "paired": {
                pair.name: {key: value for key, value in asdict(pair).items() if key != "name"} for pair in self.paired
            },
        }

    def utterances(self) -> Iterator[dict[str, Any]]:
        """Yields one record per utterance: the normalized texts, and the errors of each system."""
        names = [system.name for system in self.systems]
        for number, (id, reference) in enumerate(zip(self.ids, self.references, strict=True)):
            yield {
                "id": id,
                "reference": reference,
                "hypotheses": {name: texts[number] for name, texts in zip(names, self.hypotheses, strict=True)},
                "errors": {name: counts[number] for name, counts in zip(names, self.errors, strict=True)},
            }


def compare_named(systems: Sequence[System], normalizer: str | None = None, metric: str | None = None) -> Comparison:
    """Compares systems; normalizer and metric are names, by default of their scores' and their language's.

    Raises ConfigError if the metric is not known, or the scores have no normalizer in common, and DataError if the
    systems were not scored on the same utterances and references.
    """
    name = metric or ranking_rate(language_of(systems))
    chosen = {known.name: known for known in (WER, CER)}.get(name)
    if chosen is None:
        raise ConfigError(f"--metric {name}: systems are compared by wer or cer")
    used = common_normalizer(systems, normalizer)
    return compare(systems, common_references(systems, used), used, chosen)


def compare(
    systems: Sequence[System], references: Mapping[str, str], normalize: Normalizer, metric: Metric
) -> Comparison:
    """Compares systems that have passed `systems.common_references`, which returns the normalized `references`."""
    ids = [*references]
    texts = [[normalize(system.hypotheses[id]) for id in ids] for system in systems]
    counts = [[count_edits(metric, references[id], text) for id, text in zip(ids, own, strict=True)] for own in texts]
    errors = np.array([[item.errors for item in own] for own in counts])
    lengths = [item.reference_length for item in counts[0]]
    rates = bootstrap.resampled_rates(errors, lengths)
    scores = [
        SystemScore(
            system.name,
            total,
            metric.rate(total),
            bootstrap.rate_interval(of_each, lengths),
            (system.full_context or {}).get(metric.name) if system.normalizer == str(normalize) else None,
        )
        for system, total, of_each in zip(systems, (sum(own, EditCounts()) for own in counts), errors, strict=True)
    ]
    units = [metric.cut(references[id]) for id in ids]
    cut = [[metric.cut(text) for text in own] for own in texts]
    paired = []
    for number, score in enumerate(scores[1:], start=1):
        fewer = errors[number] - errors[0]
        difference = None if score.rate is None or scores[0].rate is None else score.rate - scores[0].rate
        test = matched_pairs(zip(units, cut[0], cut[number], strict=True))
        wins, losses = int((fewer < 0).sum()), int((fewer > 0).sum())
        ties = len(ids) - wins - losses
        of_both = bootstrap.interval(rates[number] - rates[0])
        paired.append(Paired(score.name, difference, of_both, wins, losses, ties, test))
    lines = [references[id] for id in ids]
    return Comparison(metric.name, metric.units, normalize, ids, lines, texts, errors.tolist(), scores, paired)
