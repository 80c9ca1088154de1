"""The interface of export formats, which convert a model and recognize clips with it, and transformers' own format."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from trainers.config.parts.decode_part import GenerationPart
from trainers.models.families import family_of_folder
from trainers.models.recognizer import Decoding, Recognizer


@dataclass(frozen=True)
class Source:
    """The model to convert.

    Attributes:
        folder: Folder with its files, which transformers can open.
        decoding: How the run's own hypotheses were generated.
    """

    folder: Path
    recognizer: Recognizer
    decoding: Decoding

    @property
    def most_new_tokens(self) -> int:
        """Maximum number of tokens in a hypothesis, including the end token; for models with a decoder."""
        most = self.recognizer.limits.new_tokens
        assert most is not None and isinstance(self.decoding.part, GenerationPart), "it generates"
        return max(1, min(self.decoding.part.max_length, most))

    def refusal_unless(self, family: str, named: str) -> str | None:
        """Returns why a format for one family does not support the model; None if it does."""
        own = self.recognizer.codec.name
        if own == family:
            return None
        return f"{named} are converted, and this model is of the family {own}: leave this format out of --to"


class Runtime(Protocol):
    """A converted model that its format's runtime has opened, on CPUs."""

    def recognize(self, inputs: Mapping[str, torch.Tensor], label: Sequence[int]) -> str:
        """Returns a clip's text, given its `Features.inputs` and the label ids of an empty text in its language."""


class Exporter(Protocol):
    """Interface of a format."""

    def refusal(self, source: Source) -> str | None:
        """Returns why a model cannot be converted or scored like its run, with the fix; None if it can."""

    def convert(self, source: Source, folder: Path) -> None:
        """Writes the model into an empty folder with the format's own converter."""

    def open(self, folder: Path, source: Source) -> Runtime:
        """Opens the converted model with the limits and decoding of the source."""


class HuggingFace:
    """transformers' own format, which is the run's folder `model/`; transformers' `generate` runs it."""

    def refusal(self, source: Source) -> str | None:
        return None

    def convert(self, source: Source, folder: Path) -> None:
        shutil.copytree(source.folder, folder, dirs_exist_ok=True)

    def open(self, folder: Path, source: Source) -> "_Opened":
        recognizer = family_of_folder(folder).open_exported(folder)
        recognizer.model.eval()
        return _Opened(recognizer, source.decoding)


@dataclass(frozen=True)
class _Opened:
    recognizer: Recognizer
    decoding: Decoding

    def recognize(self, inputs: Mapping[str, torch.Tensor], label: Sequence[int]) -> str:
        (found,) = self.recognizer.recognize(inputs, [label], self.decoding)
        return found.text
