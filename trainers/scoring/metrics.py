"""WER, CER and SER as `evaluate` metrics that need no network.

`evaluate.load("wer")` fetches a script from the Hub at run time. These classes are the same interface on our
own counts, for notebooks and for code that speaks `evaluate`. Training and scoring use `error_rate` itself,
which stays free of `evaluate` because that imports torch.
"""

from collections.abc import Callable, Sequence
from typing import Any
from uuid import uuid4

import evaluate
from datasets import Features, Value

from trainers.errors import ConfigError, ScoringError
from trainers.scoring.error_rate import EditCounts, character_edits, word_edits

_CITATION = "Levenshtein alignment by jiwer and RapidFuzz: https://github.com/jitsi/jiwer"
_INPUTS = """
Args:
    predictions: List of recognized texts.
    references: List of transcripts, one for each prediction. An empty one is scored: what was heard in it
        is inserted.
"""

MetricResult = dict[str, float | int | None]


class _TextMetric(evaluate.Metric):  # type: ignore[misc]  # evaluate has no types
    """What the three metrics share: two columns of strings, held in memory.

    evaluate's default keeps its columns in a file named after the experiment in a folder that all processes
    of a machine share, under a lock. In memory there is no file to collide on; a caller who asks for
    evaluate's distributed mode (`num_process` above 1), which cannot work in memory, gets the files back.
    """

    def __init__(self, *, experiment_id: str | None = None, num_process: int = 1, **options: Any) -> None:
        options.setdefault("keep_in_memory", num_process == 1)
        if experiment_id is None and num_process == 1:
            experiment_id = uuid4().hex
        super().__init__(experiment_id=experiment_id, num_process=num_process, **options)

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=type(self).__doc__ or "",
            citation=_CITATION,
            inputs_description=_INPUTS,
            features=Features({"predictions": Value("string"), "references": Value("string")}),
            reference_urls=["https://en.wikipedia.org/wiki/Word_error_rate"],
        )


class WordErrorRate(_TextMetric):
    """Word error rate: word edits per hundred reference words; None if the references hold no word.

    `compute` gives `wer` in percent and `insertions`, `deletions`, `substitutions`, `words` as counts.
    """

    def _compute(self, predictions: Sequence[str], references: Sequence[str]) -> MetricResult:
        counts = _sum_of(word_edits, predictions, references)
        return {"wer": counts.rate, **_edits(counts), "words": counts.reference_length}


class CharacterErrorRate(_TextMetric):
    """Character error rate: character edits per hundred reference characters; None if there are none.

    `compute` gives `cer` in percent and `insertions`, `deletions`, `substitutions`, `characters` as counts.
    """

    def _compute(self, predictions: Sequence[str], references: Sequence[str]) -> MetricResult:
        counts = _sum_of(character_edits, predictions, references)
        return {"cer": counts.rate, **_edits(counts), "characters": counts.reference_length}


class SentenceErrorRate(_TextMetric):
    """Sentence error rate: utterances with at least one word wrong, per hundred.

    `compute` gives `ser` in percent and `sentence_errors`, `utterances` as counts.
    """

    def _compute(self, predictions: Sequence[str], references: Sequence[str]) -> MetricResult:
        pairs = _pairs(predictions, references)
        wrong = sum(word_edits(reference, prediction).errors > 0 for reference, prediction in pairs)
        return {"ser": 100 * wrong / len(pairs), "sentence_errors": wrong, "utterances": len(pairs)}


METRICS: dict[str, type[_TextMetric]] = {
    "wer": WordErrorRate,
    "cer": CharacterErrorRate,
    "ser": SentenceErrorRate,
}


def load_metric(name: str, *, experiment_id: str | None = None) -> evaluate.Metric:
    """Makes a metric without asking the Hub, in place of `evaluate.load`.

    Args:
        name: "wer", "cer" or "ser".
        experiment_id: evaluate's name for this computation; null makes one that no other process has.

    Raises:
        ConfigError: If there is no metric of this name.
    """
    if name not in METRICS:
        raise ConfigError(f"metric {name!r} is not known: use one of {', '.join(METRICS)}")
    return METRICS[name](experiment_id=experiment_id)


def _pairs(predictions: Sequence[str], references: Sequence[str]) -> list[tuple[str, str]]:
    pairs = list(zip(references, predictions, strict=True))
    if not pairs:
        raise ScoringError("there are no predictions, so there is no score: add at least one before compute")
    return pairs


def _sum_of(
    edits: Callable[[str, str], EditCounts], predictions: Sequence[str], references: Sequence[str]
) -> EditCounts:
    pairs = _pairs(predictions, references)
    return sum((edits(reference, prediction) for reference, prediction in pairs), start=EditCounts())


def _edits(counts: EditCounts) -> MetricResult:
    return {
        "insertions": counts.insertions,
        "deletions": counts.deletions,
        "substitutions": counts.substitutions,
    }
