"""Counts a recognizer's errors by each metric, so that sums are exact.

Every utterance is aligned separately, once for each metric, and yields integers. So neither the order of the utterances
nor their distribution over workers can change a score. Case and punctuation are left to the caller's normalizer.
Imports no torch.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jiwer

from trainers.errors import ScoringError
from trainers.findings import named
from trainers.metrics.known_metrics import WER, known_metrics
from trainers.metrics.metric import EditCounts, Metric

NOT_ALWAYS_KNOWN = ("avg_logprob", "nbest", "language")


def count_edits(metric: Metric, reference: str, hypothesis: str) -> EditCounts:
    """Returns the edits of a shortest alignment of two texts, in units of a metric."""

    def cut(texts: list[str]) -> list[list[str]]:
        return [[*metric.cut(text)] for text in texts]

    # jiwer's own rate is not used, since for an empty reference it is the number of insertions.
    found = jiwer.process_words(reference, hypothesis, cut, cut)  # type: ignore[arg-type]  # any callable will do
    length = found.hits + found.deletions + found.substitutions
    return EditCounts(found.insertions, found.deletions, found.substitutions, length)


@dataclass(frozen=True, slots=True)
class UtteranceScore:
    """One utterance, its hypothesis, and the edits between the two normalized texts.

    Attributes:
        counts: The edits by metric name.
        duration_s: Length of the recording in seconds; None if not known.
        avg_logprob: See `trainers.models.recognizer`; None if not known.
        nbest: If requested, the best hypotheses with `text` and `avg_logprob`, the best first.
        language: Code of the utterance's language; None if the set has none.
    """

    id: str
    reference: str
    hypothesis: str
    counts: Mapping[str, EditCounts]
    duration_s: float | None
    avg_logprob: float | None = None
    nbest: Sequence[Mapping[str, Any]] | None = None
    language: str | None = None

    def to_json_dict(self) -> dict[str, Any]:
        """Returns the content of a JSON line, without values that are not known."""
        edits: dict[str, int] = {}
        for name, counts in self.counts.items():
            edits |= known_metrics()[name].of_utterance(counts)
        texts = {name: getattr(self, name) for name in ("id", "reference", "hypothesis")}
        known = {name: getattr(self, name) for name in NOT_ALWAYS_KNOWN if getattr(self, name) is not None}
        return {**texts, **edits, "duration_s": self.duration_s, **known}


def score_utterance(
    id: str,
    reference: str,
    hypothesis: str,
    duration_s: float | None,
    normalize: Callable[[str], str] = str,
) -> UtteranceScore:
    """Scores one utterance by each metric on normalized texts; the result has the original texts."""
    texts = normalize(reference), normalize(hypothesis)
    counts = {name: count_edits(metric, *texts) for name, metric in known_metrics().items()}
    return UtteranceScore(id, reference, hypothesis, counts, duration_s)


@dataclass(frozen=True, slots=True)
class Score:
    """The score of a set of utterances.

    Attributes:
        utterances: Number of requested utterances.
        scored: Number of requested utterances that could be decoded.
        empty_references: Number of scored utterances whose reference has no word; their hypotheses are insertions.
        counts: Sums of edits by metric name.
    """

    utterances: int
    scored: int
    empty_references: int
    counts: Mapping[str, EditCounts]

    @property
    def rates(self) -> dict[str, float | None]:
        """Percentages by metric name; None for a metric of whose units the references contain none."""
        return {name: known_metrics()[name].rate(counts) for name, counts in self.counts.items()}

    def to_json_dict(self) -> dict[str, int | float | None]:
        content: dict[str, int | float | None] = {"utterances": self.utterances, "scored": self.scored}
        for name, counts in self.counts.items():
            content |= known_metrics()[name].of_set(counts)
        return {**content, "empty_references": self.empty_references}


def score_texts(
    predictions: Sequence[str],
    references: Sequence[str],
    normalize: Callable[[str], str] | None = None,
    ids: Sequence[str] | None = None,
    durations_s: Sequence[float] | None = None,
    utterances: int | None = None,
) -> tuple[Score, list[UtteranceScore]]:
    """Scores hypotheses against their references; returns the total score, and one for each utterance.

    Args:
        predictions: Recognized texts.
        references: Transcripts, one for each prediction.
        normalize: Applied to both texts before the comparison.
        ids: Id of each utterance.
        durations_s: Length of each recording in seconds.
        utterances: Number of requested utterances; None for the number of predictions.

    Raises:
        ScoringError: there are no predictions, or more than were requested.
    """
    if not predictions:
        raise ScoringError("there are no predictions, so there is no score: add at least one before compute")
    count = len(predictions)
    columns = zip(ids or [""] * count, references, predictions, durations_s or [0.0] * count, strict=True)
    scores = [score_utterance(*row, normalize or str) for row in columns]
    return total(scores, utterances=count if utterances is None else utterances), scores


def total(scores: Iterable[UtteranceScore], *, utterances: int) -> Score:
    """Adds up utterances into one score, in any order; raises ScoringError for none, or more than requested."""
    counts = {name: EditCounts() for name in known_metrics()}
    scored = empty_references = 0
    for score in scores:
        scored += 1
        counts = {name: counted + score.counts[name] for name, counted in counts.items()}
        empty_references += score.counts[WER.name].reference_length == 0
    if scored == 0:
        raise ScoringError(
            f"0 of {utterances} utterances were scored, so there is no score: the quarantine file has the reasons"
        )
    if scored > utterances:
        raise ScoringError(
            f"{scored} utterances were scored but only {utterances} asked for: "
            "some were scored twice or belong to another set; compare their ids with check_ids"
        )
    return Score(utterances, scored, empty_references, counts)


def total_by(scores: Iterable[tuple[str | None, UtteranceScore]]) -> dict[str, Score]:
    """Returns the score of the utterances with each name, in alphabetical order; skips utterances without a name."""
    of_each: dict[str, list[UtteranceScore]] = {}
    for name, score in scores:
        if name is not None:
            of_each.setdefault(name, []).append(score)
    return {name: total(found, utterances=len(found)) for name, found in sorted(of_each.items())}


def check_ids(asked: Sequence[str], scored: Sequence[str]) -> None:
    """Raises ScoringError unless each requested id, and no other, was scored exactly once; ignores the order."""
    if found := differences(asked, scored):
        raise ScoringError(
            f"the ids that were scored are not the {len(asked)} that were asked for: {found}. "
            "Ids must be unique in the manifest, and the workers' scores from one evaluation only"
        )


def differences(asked: Sequence[str], scored: Sequence[str]) -> str:
    """Describes how scored ids differ from the requested ones, with the first few of each kind; "" if they agree."""
    asked_counts, scored_counts = Counter(asked), Counter(scored)
    problems = {
        "asked for more than once": [id for id, count in asked_counts.items() if count > 1],
        "not scored": [id for id in asked_counts if id not in scored_counts],
        "scored more than once": [id for id, count in scored_counts.items() if count > 1],
        "scored but not asked for": [id for id in scored_counts if id not in asked_counts],
    }
    return "; ".join(f"{len(ids)} {problem} ({named([*map(repr, ids)])})" for problem, ids in problems.items() if ids)
