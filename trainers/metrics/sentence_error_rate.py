"""SER: utterances in which something is wrong, per hundred utterances that were scored."""

from trainers.metrics.metric import EditCounts, Metric


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
