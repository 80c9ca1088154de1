"""CER: characters that are wrong, per hundred characters of the references."""

from trainers.metrics.metric import Metric


class CharacterErrorRate(Metric):
    """Characters are Unicode code points; one space between two words is one, as jiwer and the metric `cer` have it."""

    name, units, prefix = "cer", "characters", "character_"

    def cut(self, text: str) -> list[str]:
        return list(" ".join(text.split()))
