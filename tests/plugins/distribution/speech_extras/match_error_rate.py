"""MER: word edits per hundred aligned words, those that are inserted among them, so that it never goes above 100."""

from rayscribe.trainers.metrics.metric import EditCounts, Metric


class MatchErrorRate(Metric):
    """Morris et al. 2004, "From WER and RIL to MER and WIL", Interspeech."""

    name, units = "mer", "aligned_words"

    def cut(self, text: str) -> list[str]:
        return text.split()

    def rate(self, counts: EditCounts) -> float | None:
        aligned = counts.reference_length + counts.insertions
        return 100 * counts.errors / aligned if aligned else None

    def of_utterance(self, counts: EditCounts) -> dict[str, int]:
        # Its edits are those of WER, which each line has.
        return {self.units: counts.reference_length + counts.insertions}

    def of_set(self, counts: EditCounts) -> dict[str, int | float | None]:
        return {**self.of_utterance(counts), self.name: self.rate(counts)}


MER = MatchErrorRate()
