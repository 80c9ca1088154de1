"""The config's decode part: how hypotheses are generated. See `schema`.

Each family names the one that it has, with fields of its own: `family_table` lists them.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

from pydantic import Field

from trainers.config.parts.part import Part, Positive


class Setting(Protocol):
    """One of several ways to run a search, of which the best on the validation set is chosen."""

    @property
    def order(self) -> tuple[float, ...]:
        """Of settings with equal scores the least is chosen."""

    def to_json_dict(self) -> dict[str, float]:
        """Its numbers, by the names under which scores record them."""


class DecodePart(Part):
    """How hypotheses are generated; a family without fields of its own generates one of each utterance."""

    # Module and class of the `models.family.Decoder` of its searches.
    decoder: ClassVar[str | None] = None
    # Rayscribe's extra that searches need installed.
    extra: ClassVar[str | None] = None
    # Fields that name a file, and those that name a model, which a search reads.
    files: ClassVar[tuple[str, ...]] = ()
    models: ClassVar[tuple[str, ...]] = ()
    # Fields that may have several values, of which the best on the validation set is chosen.
    tuned: ClassVar[tuple[str, ...]] = ()
    # Fields that scores in training, which choose the best checkpoint, depend on; the others are of final scores alone.
    ranking: ClassVar[tuple[str, ...]] = ()
    # By which name records have the score without a search.
    greedy: ClassVar[str] = "greedy"

    @property
    def settings(self) -> Sequence[Setting]:
        """The settings of the search of a model's outputs that it asks for; none: it asks for no search."""
        return ()

    @property
    def is_tuned(self) -> bool:
        return len(self.settings) > 1

    @property
    def beams(self) -> str | None:
        """The field that says how many hypotheses of an utterance there are; None: there is one."""
        return None

    def describe(self) -> dict[str, Any]:
        """What stands as `decoding` in the record of a score that was made without a search of outputs."""
        return {"method": "greedy"}


class GenerationPart(DecodePart):
    """How a model with a decoder generates its hypotheses, token by token."""

    ranking: ClassVar[tuple[str, ...]] = ("max_length", "num_beams")

    max_length: Positive = Field(225, description="Most tokens of a hypothesis.")
    num_beams: Positive = Field(1, description="Beams. 1: greedy.")

    @property
    def beams(self) -> str:
        return "num_beams"

    def describe(self) -> dict[str, Any]:
        return super().describe() if self.num_beams == 1 else {"method": "beam", "beam_size": self.num_beams}
