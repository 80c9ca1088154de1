"""WER: words that are wrong, per hundred words of the references."""

from trainers.metrics.metric import Metric


class WordErrorRate(Metric):
    """Words are what whitespace of any kind separates."""

    name, units = "wer", "words"

    def cut(self, text: str) -> list[str]:
        return text.split()
