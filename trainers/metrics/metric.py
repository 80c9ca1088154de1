"""The interface of metrics: how texts are split into units, and how edits between units become a score."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class EditCounts:
    """The edits that turn a reference into a hypothesis, and the length of the reference, in units of a metric.

    Counts add up with `+`; start a sum from `EditCounts()`.
    """

    insertions: int = 0
    deletions: int = 0
    substitutions: int = 0
    reference_length: int = 0

    def __add__(self, other: "EditCounts") -> "EditCounts":
        return EditCounts(
            self.insertions + other.insertions,
            self.deletions + other.deletions,
            self.substitutions + other.substitutions,
            self.reference_length + other.reference_length,
        )

    @property
    def errors(self) -> int:
        """Number of edits: the Levenshtein distance."""
        return self.insertions + self.deletions + self.substitutions

    @property
    def rate(self) -> float | None:
        """Errors per hundred reference units; None for an empty reference.

        Exceeds 100 if the hypothesis is much longer than the reference.
        """
        return 100 * self.errors / self.reference_length if self.reference_length else None


class Metric(ABC):
    """One way to compare hypotheses with references.

    Edits are counted for each utterance separately; a score is the sum of the counts, divided once at the end.

    Attributes:
        name: Key of the rate in scores; `eval_<name>` ranks checkpoints.
        units: Key of the number of units in the references.
        prefix: Prefix of the keys of the edits.
        order: "min" if smaller rates are better, else "max".
    """

    name: str
    units: str
    prefix: str = ""
    order: Literal["min", "max"] = "min"

    @abstractmethod
    def cut(self, text: str) -> Sequence[str]:
        """Returns the units of a normalized text."""

    def rate(self, counts: EditCounts) -> float | None:
        """Returns the rate of counts, in percent; None without reference units."""
        return counts.rate

    def of_utterance(self, counts: EditCounts) -> dict[str, int]:
        """Returns the fields of an utterance in the scores' JSON lines."""
        edits = {f"{self.prefix}{name}": getattr(counts, name) for name in ("insertions", "deletions", "substitutions")}
        return {self.units: counts.reference_length, **edits}

    def of_set(self, counts: EditCounts) -> dict[str, int | float | None]:
        """Returns the fields of a set's score: counts, and the rate."""
        return {**self.of_utterance(counts), self.name: self.rate(counts)}
