"""What is asked of a format: to convert a run's model, and to recognize clips with what came of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from trainers.config.parts.decode_part import GenerationPart
from trainers.models.recognizer import Decoding, Recognizer


@dataclass(frozen=True)
class Source:
    """The model that is converted.

    Attributes:
        folder: Its files, as transformers opens them.
        recognizer: The same, opened.
        decoding: How the run's own hypotheses were generated.
    """

    folder: Path
    recognizer: Recognizer
    decoding: Decoding

    @property
    def most_new_tokens(self) -> int:
        """The most tokens of a hypothesis, its end token among them; of a model with a decoder."""
        most = self.recognizer.limits.new_tokens
        assert most is not None and isinstance(self.decoding.part, GenerationPart), "it generates"
        return max(1, min(self.decoding.part.max_length, most))

    def refusal_unless(self, family: str, named: str) -> str | None:
        """Why a format that takes one family alone does not take the model; None: it does."""
        own = self.recognizer.codec.name
        if own == family:
            return None
        return f"{named} are converted, and this model is of the family {own}: leave it out of --to"


class Runtime(Protocol):
    """A converted model, opened by the runtime of its format, on CPUs."""

    def recognize(self, inputs: Mapping[str, torch.Tensor], label: Sequence[int]) -> str:
        """The text of one clip.

        Args:
            inputs: Of the clip alone, see `Features.inputs`.
            label: Label ids of an empty text in the clip's language.
        """


class Exporter(Protocol):
    """A format."""

    def refusal(self, source: Source) -> str | None:
        """Why a model cannot be converted, or not be scored as its run was, and what to do; None: it can."""

    def convert(self, source: Source, folder: Path) -> None:
        """Writes the model into an empty folder, by the format's own converter."""

    def open(self, folder: Path, source: Source) -> Runtime:
        """Opens what was written; of the source it takes limits and how to decode."""
