"""The metrics that are always scored: error rates, which are edits per hundred units of the references.

To add a metric, write a `Metric` and add it to OURS. Other distributions add metrics by entry points
`rayscribe.metrics`, see docs/scoring.md.
"""

from collections.abc import Mapping
from functools import cache

from trainers.metrics.metric import EditCounts, Metric
from trainers.plugins import with_plugins


class WordErrorRate(Metric):
    """Word error rate; words are separated by whitespace of any kind."""

    name, units = "wer", "words"

    def cut(self, text: str) -> list[str]:
        return text.split()


class CharacterErrorRate(Metric):
    """Character error rate of Unicode code points; a space between words is a character, as in jiwer and `cer`."""

    name, units, prefix = "cer", "characters", "character_"

    def cut(self, text: str) -> list[str]:
        return list(" ".join(text.split()))


class SentenceErrorRate(Metric):
    """Sentence error rate; every utterance is one unit, even an empty one."""

    name, units = "ser", "utterances"

    def cut(self, text: str) -> list[str]:
        return [" ".join(text.split())]

    def of_utterance(self, counts: EditCounts) -> dict[str, int]:
        # The edits of the utterance's words show whether the sentence is wrong.
        return {}

    def of_set(self, counts: EditCounts) -> dict[str, int | float | None]:
        # Scored utterances are counted once for all metrics.
        return {"sentence_errors": counts.errors, self.name: self.rate(counts)}


WER, CER = WordErrorRate(), CharacterErrorRate()
OURS = (WER, CER, SentenceErrorRate())


@cache
def known_metrics() -> Mapping[str, Metric]:
    """Returns the metrics by name, in the order in which scores show them."""
    return with_plugins("rayscribe.metrics", {metric.name: metric for metric in OURS})
