"""Defines the interface of a family of recognizers; `config.family_table` lists the families.

Until it loads a model, a family works without torch, even if that is not installed, since checks before a run need no
weights.
"""

from __future__ import annotations

import tempfile
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from transformers import AutoConfig

from trainers.config.parts.model_part import ModelPart
from trainers.config.schema import TrainConfig
from trainers.config.storage_location import StorageOptions
from trainers.errors import ConfigError
from trainers.findings import Finding
from trainers.models.adaptation.network_parts import Parts
from trainers.models.label_codec import LabelCodec, Limits
from trainers.models.pretrained import from_pretrained, refuse_other_sizes

if TYPE_CHECKING:
    # Loads torch.
    from trainers.models.recognizer import Recognizer

Model = TypeVar("Model", bound=ModelPart)


class Decoder(Protocol):
    """The search that a decode part configures, before a model is loaded; `Recognizer.open_search` opens it.

    `part` is a decode part that names this decoder, and has settings.
    """

    def check(self, part: Any, storage_options: StorageOptions) -> None:
        """Finds within seconds what would stop the search at the end of a training.

        Raises ConfigError if a library is not installed, or a file or a model cannot be used, and StorageError if a
        bucket cannot be read, or the Hub does not respond.
        """

    def inspect(self, part: Any, processor: Any, storage_options: StorageOptions) -> Iterable[Finding]:
        """Reports what would stop the search, or make it miss words without an error."""

    def note(self, decoding: Mapping[str, Any]) -> str:
        """Returns a note for the model card on a decoding (`Decoding.describe`) that transformers' `pipeline` lacks."""

    def content_hashes(self, part: Any, storage_options: StorageOptions) -> dict[str, str]:
        """Returns the SHA-256 of the files that can be read quickly, by the name of their field.

        Raises StorageError if a bucket or disk cannot be read.
        """


class Family(LabelCodec, Generic[Model]):
    """A family of recognizers: models that are described, loaded and labeled in the same way.

    Methods that read pretrained weights raise as `pretrained.open_named`.

    Attributes:
        model_types: Each `model_type` in the config.json of its models.
        context_s: Longest input of a model that is not opened, if the config does not set it. Seconds.
        recognizer: Module and class of its recognizers, which load torch. The class's `load` takes the family, the
            model part, the processor, and the other arguments of `load_recognizer`.
        has_timestamps: True if its models write timestamps, see `Recognizer.segments`.
        sizes: Keys of config.json in which a checkpoint must equal the config's model so that a run can start from it;
            None for all keys of the architecture.
    """

    model_types: tuple[str, ...]
    context_s: float
    recognizer: ClassVar[str]
    has_timestamps: ClassVar[bool] = False
    sizes: ClassVar[Sequence[str] | None] = None

    @abstractmethod
    def auto_class(self, config: Any) -> Any:
        """Returns the transformers class whose `from_pretrained` and `from_config` make a config's network."""

    @abstractmethod
    def parts(self, network: Any) -> Parts:
        """Returns the names of the modules of each part of a network; every weight must be in exactly one of them.

        Every method of `adapt` trains the head; freezing, layers and adapters depend on the other names.
        """

    def learns_processor(self, model: Model) -> bool:
        """Returns True if the vocabulary is learned from the training text; if so, the run folder has the processor."""
        return model.init == "scratch"

    def makes_new_head(self, model: Model) -> bool:
        """Returns True if pretrained weights get a new output layer, so that they may lack one."""
        return False

    def new_processor(self, texts: Sequence[str], model: Model) -> Any:
        """Returns the processor of a new model, whose vocabulary is learned from `texts`.

        Raises ConfigError if the family has no new models, as by default.
        """
        raise ConfigError(f"model.family is {self.name}, which has no new models: set model.init: pretrained")

    def write_description(self, folder: Path, texts: Sequence[str], model: Model) -> None:
        """Writes everything of a new model except weights, so that all ranks build the same: config and processor."""
        self.new_processor(texts, model)

    def adopt_description(self, source: Path, folder: Path, model: Model) -> None:
        """Writes the description of a model that starts from a checkpoint's weights, whose files are in `source`.

        Dropout, language and task are taken from the config, if the family has such fields. Raises ConfigError if the
        checkpoint's model differs in size from the config's, or does not know the language.
        """
        for part in self.open_checkpoint(source, model):
            part.save_pretrained(folder)

    def open_checkpoint(self, source: Path, model: Model) -> tuple[Any, Any]:
        """Returns config and processor of the checkpoint in `source`; raises as `adopt_description`."""
        config, processor = AutoConfig.from_pretrained(source), self.open_processor(model, source)
        refuse_other_sizes(config, self.model_config(model, processor), self.sizes)
        return config, processor

    @abstractmethod
    def open_processor(self, model: Model, description: Path | None) -> Any:
        """Opens the processor in a description's folder, or that of pretrained weights if `description` is None.

        Raises ConfigError if the processor cannot be opened, or does not match the config.
        """

    def model_config(self, model: Model, processor: Any) -> Any:
        """Returns the config.json of a model that is not loaded; without a processor, a new one is for the text `a`."""
        if model.init == "pretrained":
            return from_pretrained(model, AutoConfig)
        with tempfile.TemporaryDirectory(prefix="rayscribe-") as folder:
            self.write_description(Path(folder), ["a"], model)
            return AutoConfig.from_pretrained(folder)

    def notes(self, model: Model, processor: Any) -> Sequence[str]:
        """Returns a line for each setting of pretrained weights that is ignored or replaced, for early checks."""
        return ()

    def misfits(self, config: TrainConfig, limits: Limits) -> list[str]:
        """Returns a line for each setting that prevents training a model with these limits."""
        shares = {name: getattr(config.training, name) for name in ("keep_timestamps", "previous_text")}
        found = [
            f"training.{name} is {share:g}, but models of the family {self.name} have no tokens for it: set it to 0"
            for name, share in shares.items()
            if share and not self.has_timestamps
        ]
        if not config.augment.frequency_masks or limits.has_bins:
            return found
        return [
            *found,
            f"augment.frequency_masks is {config.augment.frequency_masks}, but this model is given samples, which have "
            "no frequency bins: set it to 0; model.apply_spec_augment and mask_feature_prob mask inside the model",
        ]

    def check_texts(self, processor: Any, texts: Iterable[str]) -> str | None:
        """Returns a warning about a split's transcripts; None if there is nothing to report.

        Raises ConfigError if the transcripts obviously do not match the processor.
        """
        return None

    def load_recognizer(
        self, model: Model, description: Path | None, seed: int, *, weights: Path | None = None
    ) -> Recognizer:
        """Builds the model in this process, the same on every rank.

        Args:
            model: The config's model part; weights that are not new have its `dtype`.
            description: Folder that `write_description` or `adopt_description` wrote; None for pretrained weights.
            seed: Seed of new weights.
            weights: A checkpoint's files, with the weights of a described model; None for new weights.
        """
        processor = self.open_processor(model, description)
        loaded: Recognizer = resolve_name(self.recognizer).load(self, model, processor, description, seed, weights)
        return loaded

    def open_exported(self, folder: Path, dtype: str = "float32") -> Recognizer:
        """Opens a folder with model and processor, written by an export or a checkpoint, with weights in `dtype`."""
        network = self.auto_class(AutoConfig.from_pretrained(folder)).from_pretrained(folder, dtype=dtype)
        part: Any = ModelPart(name_or_path=str(folder), dtype=dtype)
        opened: Recognizer = resolve_name(self.recognizer)(network, self.open_processor(part, folder), self)
        return opened

    def export_processor(self, folder: Path) -> None:
        """Changes the files of a saved processor, next to its model, for the software that reads exports.

        By default, they are unchanged, including `processor_config.json`.
        """
