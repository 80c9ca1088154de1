"""What a metric is: how texts are cut into units, and what the edits between those of two texts come to."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class EditCounts:
    """The edits that turn a reference into a hypothesis, and how long the reference was.

    Counts add up with `+`; start a sum from `EditCounts()`.

    Attributes:
        insertions: Units of the hypothesis that the reference does not have.
        deletions: Units of the reference that the hypothesis does not have.
        substitutions: Units of the reference that stand as others in the hypothesis.
        reference_length: Units in the reference.
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
        """All edits together: the Levenshtein distance."""
        return self.insertions + self.deletions + self.substitutions

    @property
    def rate(self) -> float | None:
        """Errors per hundred reference units; None for an empty reference, which no rate can describe.

        It goes above 100 where the hypothesis is much longer than the reference.
        """
        return 100 * self.errors / self.reference_length if self.reference_length else None


class Metric(ABC):
    """One way to compare hypotheses with references.

    Edits are counted for each utterance, alone; a score is the sum of the counts and one division at the end.

    Attributes:
        name: Key of the rate in scores; `eval_<name>` ranks checkpoints.
        units: Key of the number of units in the references.
        prefix: Begins the keys of the edits.
        order: Which rate is better, the smaller or the larger one.
    """

    name: str
    units: str
    prefix: str = ""
    order: Literal["min", "max"] = "min"

    @abstractmethod
    def cut(self, text: str) -> Sequence[str]:
        """The units of a normalized text."""

    def rate(self, counts: EditCounts) -> float | None:
        """What counts come to, in percent; None where no rate can describe them."""
        return counts.rate

    def of_utterance(self, counts: EditCounts) -> dict[str, int]:
        """What stands in an utterance's line of JSON."""
        edits = {f"{self.prefix}{name}": getattr(counts, name) for name in ("insertions", "deletions", "substitutions")}
        return {self.units: counts.reference_length, **edits}

    def of_set(self, counts: EditCounts) -> dict[str, int | float | None]:
        """What stands in the score of a set of utterances: counts, and the rate."""
        return {**self.of_utterance(counts), self.name: self.rate(counts)}
