"""What the rest of Rayscribe asks of a family of recognizers; `known_families` lists the families that there are.

A family answers without torch, and works where transformers finds none, until it loads a model: what is checked before
a run needs no weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from trainers.config.parts.augment_part import AugmentPart
from trainers.config.parts.model_part import ModelPart
from trainers.config.parts.training_part import TrainingPart
from trainers.data.frame_count import FrameCount

if TYPE_CHECKING:
    from trainers.models.recognizer import Recognizer


@dataclass(frozen=True)
class Limits:
    """What a model can take in and give out.

    Attributes:
        context_s: Its longest input. Seconds.
        label_tokens: The most tokens of a label, those before and behind the text included.
        prefix_tokens: Tokens before the text of each label, which are given and not generated.
        new_tokens: The most tokens that it generates. None: it gives each of its frames a label instead.
        frames: Its outputs of a clip, where it must have one for each token of a label. None: it need not.
        whole_context: Whether clips are padded to the whole context, unless buckets are asked for.
        sees_padding: Whether padding moves its outputs, so that clips are scored without.
        has_bins: Whether its input has frequency bins; otherwise it is of samples.
    """

    context_s: float
    label_tokens: int
    prefix_tokens: int
    new_tokens: int | None
    frames: FrameCount | None = None
    whole_context: bool = True
    sees_padding: bool = False
    has_bins: bool = True


def masking_problem(augment: AugmentPart, limits: Limits) -> str | None:
    """Why a model's input cannot be masked as the config says; None where it can."""
    if not augment.frequency_masks or limits.has_bins:
        return None
    return (
        f"augment.frequency_masks is {augment.frequency_masks}, but this model is given samples, which have no "
        "frequency bins: set it to 0; model.apply_spec_augment and mask_feature_prob mask inside the model"
    )


def matching_problem(training: TrainingPart, model: ModelPart, limits: Limits) -> str | None:
    """Why a model has no longer context of its own to be matched at; None where it has, or is not asked to."""
    if not training.full_context_matching or (model.max_context_s or limits.context_s) < limits.context_s:
        return None
    return (
        f"training.full_context_matching is {training.full_context_matching}, but model.max_context_s "
        f"{model.max_context_s} is not shorter than the model's own context of {limits.context_s:g} s: lower it, or "
        "set full_context_matching: 0"
    )


class Family(Protocol):
    """A family of recognizers: models that are described, loaded and given labels in one way.

    Attributes:
        name: `model.family` in a config.
        model_types: Each `model_type` in the config.json of its models.
        foreign_fields: Dotted names of fields of a config that mean nothing to it.
    """

    name: str
    model_types: tuple[str, ...]
    foreign_fields: tuple[str, ...]

    def context_s(self, model: ModelPart) -> float:
        """The longest input of a model that need not be open, seconds."""

    def learns_processor(self, model: ModelPart) -> bool:
        """Whether the vocabulary is learned from the training text, so that the run folder keeps the processor.

        Raises:
            ConfigError: pretrained weights that say so cannot be opened.
        """

    def keeps_saved_processor(self, model: ModelPart) -> bool:
        """Whether a run that has begun goes on with the processor of its checkpoints.

        Where the config's language may mean other tokens to this version than to the one that began the run.

        Raises:
            ConfigError: pretrained weights that say so cannot be opened.
        """

    def new_processor(self, texts: Sequence[str], model: ModelPart) -> Any:
        """The processor of a new model, whose vocabulary is learned from `texts`."""

    def write_description(self, folder: Path, texts: Sequence[str], model: ModelPart) -> None:
        """Writes config and processor of a new model, everything but weights, so that all ranks build the same one.

        Args:
            folder: Where to.
            texts: Transcripts of the training set.
            model: The config's model part.
        """

    def adopt_description(self, source: Path, folder: Path, model: ModelPart) -> None:
        """Writes the description of a model that begins with the weights of a checkpoint.

        Args:
            source: The checkpoint's files.
            folder: Where to.
            model: The config's model part: dropout, language and task are its own.

        Raises:
            ConfigError: the checkpoint's model has other sizes than the config's, or does not know its language.
        """

    def open_processor(self, model: ModelPart, description: Path | None) -> Any:
        """Opens the processor.

        Args:
            model: The config's model part.
            description: Folder of `write_description`, or None for the processor of pretrained weights.

        Raises:
            ConfigError: it cannot be opened, or does not fit the config.
        """

    def limits(self, model: ModelPart, processor: Any) -> Limits:
        """The limits of a model that is not loaded yet."""

    def encode_labels(self, processor: Any, texts: Sequence[str]) -> list[list[int]]:
        """Label ids of each text, with what stands before and behind the text."""

    def check_texts(self, processor: Any, texts: Iterable[str]) -> str | None:
        """A warning about a split's transcripts; None if there is nothing to report.

        Raises:
            ConfigError: they cannot be what the processor is for.
        """

    def labels_fingerprint(self, processor: Any) -> str:
        """Hash of all of the processor that label ids depend on: 16 hexadecimal digits."""

    def language_code(self, language: str) -> str:
        """The code of a language given by name or code, e.g. `Serbian` → `sr`.

        Raises:
            ConfigError: the family does not know it.
        """

    def load_recognizer(
        self, model: ModelPart, description: Path | None, seed: int, *, weights: Path | None = None
    ) -> Recognizer:
        """Builds the model on this process, the same on every rank.

        Args:
            model: The config's model part.
            description: Folder of `write_description` or `adopt_description`, or None for pretrained weights.
            seed: Seed of new weights.
            weights: A checkpoint's files, for the weights of a model that is described. None: new weights.

        Raises:
            ConfigError: the weights cannot be opened.
        """

    def write_for_all_readers(self, folder: Path) -> set[str]:
        """Writes a processor as transformers before version 5, and converters made for it, read it; newer ones do, too.

        Args:
            folder: Holds a model and its processor.

        Returns:
            Names of the files.
        """

    def open_exported(self, folder: Path) -> Recognizer:
        """Opens a folder with model and processor, as written by an export or a checkpoint."""
