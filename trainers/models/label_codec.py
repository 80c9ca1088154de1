"""What is known of a model without its weights: its limits, and how it writes transcripts as label ids. No torch."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trainers.data.frame_count import FrameCount


@dataclass(frozen=True)
class Limits:
    """What a model can take in and give out.

    Attributes:
        context_s: Its longest input. Seconds.
        label_tokens: The most tokens of a label, those before and behind the text included.
        prefix_tokens: Tokens before the text of each label, which are given and not generated.
        new_tokens: The most tokens that it generates. None: it gives each of its frames a label instead.
        frames: Its outputs of a clip, where it must have one for each token of a label. None: it need not.
        full_context: Whether clips are padded to the full context, unless buckets are asked for.
        padding_affects_output: Whether padding moves its outputs, so that clips are scored without.
        has_bins: Whether its input has frequency bins; otherwise it is of samples.
        least_samples: Its shortest input; it fails at a shorter one.
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
        """Whether a clip's outputs are the same behind any padding."""
        return not (self.full_context or self.padding_affects_output)


class LabelCodec(ABC):
    """How the models of a family write transcripts, and how much they take.

    Attributes:
        name: `model.family` in a config.
    """

    name: str

    @abstractmethod
    def limits(self, config: Any, processor: Any) -> Limits:
        """The limits of a model with this config.json, which need not be loaded."""

    @abstractmethod
    def encode_labels(self, processor: Any, texts: Sequence[str]) -> list[list[int]]:
        """Label ids of each text, with what stands before and behind the text."""

    @abstractmethod
    def labels_fingerprint(self, processor: Any) -> str:
        """Hash of all of the processor that label ids depend on: 16 hexadecimal digits."""

    def language_prefix(self, processor: Any, language: str | None) -> list[int]:
        """The label ids before each text in a language (name or code; None: the processor's own).

        They are the same for each language, and by default none, where this model's labels do not say it. Those of a
        new model that is not made yet, whose processor is None, are not known and are none, too.

        Raises:
            ConfigError: the model does not know the language.
        """
        return []
