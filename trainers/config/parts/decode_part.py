"""The config's decode part: how hypotheses are generated. See `schema`.

Each family has its own subclass with its own fields; `family_table` lists the families.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

from pydantic import Field

from trainers.config.parts.part import Part, Positive


class Setting(Protocol):
    """One setting of a search; if there are several, the best on the validation set is used."""

    @property
    def order(self) -> tuple[float, ...]:
        """Sort key; of settings with equal scores, the one with the least key is used."""

    def to_json_dict(self) -> dict[str, float]:
        """Returns its numbers, by the names under which scores record them."""


class DecodePart(Part):
    """Settings for generating hypotheses; without fields of its family's own, one hypothesis per utterance."""

    # Module and class of the family's `models.family.Decoder`.
    decoder: ClassVar[str | None] = None
    # The extra of Rayscribe that a search requires.
    extra: ClassVar[str | None] = None
    # Fields that name a file, and fields that name a model, which a search reads.
    files: ClassVar[tuple[str, ...]] = ()
    models: ClassVar[tuple[str, ...]] = ()
    # Fields that may have several values, of which the best on the validation set is chosen.
    tuned: ClassVar[tuple[str, ...]] = ()
    # Fields that also change the scores in training, which rank checkpoints; the others change only final scores.
    ranking: ClassVar[tuple[str, ...]] = ()
    # In records, the name of the score without a search.
    greedy: ClassVar[str] = "greedy"

    @property
    def settings(self) -> Sequence[Setting]:
        """The settings of the configured search over a model's outputs; empty if no search is configured."""
        return ()

    @property
    def sources(self) -> Sequence[str]:
        """The fields that name a file or a model which a search reads, and are set."""
        return [name for name in (*self.files, *self.models) if getattr(self, name) is not None]

    @property
    def is_tuned(self) -> bool:
        return len(self.settings) > 1

    @property
    def beams(self) -> str | None:
        """The field with the number of hypotheses of an utterance; None if there is always one hypothesis."""
        return None

    def describe(self) -> dict[str, Any]:
        """Returns the value of `decoding` in the record of a score without a search."""
        return {"method": "greedy"}


class GenerationPart(DecodePart):
    """Settings for a decoder that generates hypotheses token by token."""

    ranking: ClassVar[tuple[str, ...]] = ("max_length", "num_beams")

    max_length: Positive = Field(225, description="Maximum length of a hypothesis. Tokens.")
    num_beams: Positive = Field(1, description="Number of beams. 1: greedy.")

    @property
    def beams(self) -> str:
        return "num_beams"

    def describe(self) -> dict[str, Any]:
        return super().describe() if self.num_beams == 1 else {"method": "beam", "beam_size": self.num_beams}
