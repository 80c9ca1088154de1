"""Defines what is known of a model without its weights: its limits, and the encoding of label ids. No torch."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trainers.data.frame_count import FrameCount


@dataclass(frozen=True)
class Limits:
    """The limits of a model's input and output.

    Attributes:
        context_s: Longest input. Seconds.
        label_tokens: Maximum number of label tokens of an utterance, including those before and after the text.
        prefix_tokens: Number of label tokens before the text, which are given, not generated.
        new_tokens: Maximum number of generated tokens; None if the model has an output for each frame instead.
        frames: Counts the outputs of a clip, if each label token requires one; else None.
        full_context: True if clips are padded to the full context, unless buckets are configured.
        padding_affects_output: True if padding changes the outputs, so that clips are scored without padding.
        has_bins: True if the input has frequency bins, False if it is samples.
        least_samples: Shortest input, samples; the model fails on a shorter one.
    """

    context_s: float
    label_tokens: int
    prefix_tokens: int
    new_tokens: int | None
    frames: FrameCount | None = None
    full_context: bool = True
    padding_affects_output: bool = False
    has_bins: bool = True
    least_samples: int = 1

    @property
    def masks_padding(self) -> bool:
        """True if a clip's outputs are the same with any padding after it."""
        return not (self.full_context or self.padding_affects_output)


class LabelCodec(ABC):
    """The label encoding and the limits of the models of a family."""

    # `model.family` in a config.
    name: str

    @abstractmethod
    def limits(self, config: Any, processor: Any) -> Limits:
        """Returns the limits of a model with this config.json, which need not be loaded."""

    @abstractmethod
    def encode_labels(self, processor: Any, texts: Sequence[str]) -> list[list[int]]:
        """Returns the label ids of each text, with the tokens before and after the text."""

    @abstractmethod
    def labels_fingerprint(self, processor: Any) -> str:
        """Returns a hash of everything in the processor that label ids depend on: 16 hexadecimal digits."""

    def language_prefix(self, processor: Any, language: str | None) -> list[int]:
        """Returns the label ids before each text in a language (name or code; None for the processor's own).

        There are as many for each language. The result is empty, as by default, if labels have no language token, and
        for a new model that is not made yet (`processor` is None), whose ids are not known. Raises ConfigError if the
        language is unknown to the model.
        """
        return []
