"""Edits per hundred units of the references, where the units are words, characters or complete utterances."""

from trainers.metrics.metric import EditCounts, Metric


class WordErrorRate(Metric):
    """Words are what whitespace of any kind separates."""

    name, units = "wer", "words"

    def cut(self, text: str) -> list[str]:
        return text.split()


class CharacterErrorRate(Metric):
    """Characters are Unicode code points; one space between two words is one, as jiwer and the metric `cer` have it."""

    name, units, prefix = "cer", "characters", "character_"

    def cut(self, text: str) -> list[str]:
        return list(" ".join(text.split()))


class SentenceErrorRate(Metric):
    """An utterance is one unit, an empty one too."""

    name, units = "ser", "utterances"

    def cut(self, text: str) -> list[str]:
        return [" ".join(text.split())]

    def of_utterance(self, counts: EditCounts) -> dict[str, int]:
        # The edits of its words say it.
        return {}

    def of_set(self, counts: EditCounts) -> dict[str, int | float | None]:
        # Scored utterances are counted once for all metrics.
        return {"sentence_errors": counts.errors, self.name: self.rate(counts)}
