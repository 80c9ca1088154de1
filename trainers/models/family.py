"""What the rest of Rayscribe asks of a family of recognizers; `config.family_table` lists those that there are.

A family answers without torch, and works where transformers finds none, until it loads a model: what is checked before
a run needs no weights.
"""

from __future__ import annotations

import tempfile
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

from transformers import AutoConfig

from trainers.config.parts.model_part import ModelPart
from trainers.config.schema import TrainConfig
from trainers.config.storage_location import StorageOptions
from trainers.errors import ConfigError
from trainers.findings import Finding
from trainers.models.adaptation.network_parts import Parts
from trainers.models.label_codec import LabelCodec, Limits
from trainers.models.language_names import code_or_name
from trainers.models.pretrained import from_pretrained, refuse_other_architecture

if TYPE_CHECKING:
    # It loads torch.
    from trainers.models.recognizer import Recognizer

# A family's part of the config.
Model = TypeVar("Model", bound=ModelPart)


class OpenModel(NamedTuple):
    """A model, as far as it opens without its weights.

    Attributes:
        part: What the config says of it.
        processor: Its processor; a new model's was learned from the training text.
    """

    part: Any
    processor: Any


# A function `check_<name>` that a preflight has, too.
FamilyCheck = Callable[[OpenModel], Iterable[Finding]]


class Decoder(Protocol):
    """The search that a decode part asks for, before a model is open; `Recognizer.open_search` runs it.

    `part` is a decode part that names it, and has settings.
    """

    def check(self, part: Any, storage_options: StorageOptions) -> None:
        """Finds in seconds what would stop it at the end of a training.

        Raises:
            ConfigError: a library is not installed, or a file or a model cannot be used.
            StorageError: a bucket cannot be read, or the Hub does not respond.
        """

    def inspect(self, part: Any, processor: Any, storage_options: StorageOptions) -> Iterable[Finding]:
        """Finds what would stop it, or quietly find nothing."""

    def note(self, decoding: Mapping[str, Any]) -> str:
        """For the model card: how the test set was scored, by its `Decoding.describe`, which `pipeline` does not do."""

    def content_hashes(self, part: Any, storage_options: StorageOptions) -> dict[str, str]:
        """SHA-256 of the files that can be read quickly, by the name of their field.

        Raises:
            StorageError: a bucket or disk cannot be read.
        """


class Family(LabelCodec, Generic[Model]):
    """A family of recognizers: models that are described, loaded and given labels in one way.

    Attributes:
        model_types: Each `model_type` in the config.json of its models.
        context_s: The longest input of a model that need not be open, where the config names none. Seconds.
        recognizer: Module and class of its recognizers, which take torch. `load` of the class builds one of the family,
            the part of the config, the processor, and the other arguments of `load_recognizer`.
        checks: What its models have to agree on, checked before a run.
    """

    model_types: tuple[str, ...]
    context_s: float
    recognizer: ClassVar[str]
    checks: ClassVar[Sequence[FamilyCheck]] = ()

    @abstractmethod
    def auto_class(self, config: Any) -> Any:
        """The class of transformers whose `from_pretrained` and `from_config` make the network of a config.json."""

    @abstractmethod
    def parts(self, network: Any) -> Parts:
        """Names of the modules of each part of a network; all its weights are within one of them.

        Every method of `adapt` trains the head; freezing, layers and adapters are chosen by the other names.
        """

    def learns_processor(self, model: Model) -> bool:
        """Whether the vocabulary is learned from the training text, so that the run folder keeps the processor.

        Raises:
            ConfigError: pretrained weights that say so cannot be opened.
        """
        return model.init == "scratch"

    def makes_new_head(self, model: Model) -> bool:
        """Whether pretrained weights get a new output layer on purpose, so that they may lack one.

        Raises:
            ConfigError: pretrained weights that say so cannot be opened.
        """
        return False

    def new_processor(self, texts: Sequence[str], model: Model) -> Any:
        """The processor of a new model, whose vocabulary is learned from `texts`.

        Raises:
            ConfigError: the family's models begin with weights, as by default.
        """
        raise ConfigError(f"model.family is {self.name}: its models begin with weights; set model.init: pretrained")

    def write_description(self, folder: Path, texts: Sequence[str], model: Model) -> None:
        """Writes config and processor of a new model, everything but weights, so that all ranks build the same one.

        Raises:
            ConfigError: as of `new_processor`.
        """
        self.new_processor(texts, model)

    def adopt_description(self, source: Path, folder: Path, model: Model) -> None:
        """Writes the description of a model that begins with the weights of a checkpoint, whose files are `source`.

        Dropout, language and task are the config's, where the family has such fields.

        Raises:
            ConfigError: the checkpoint's model has other sizes than the config's, or does not know its language.
        """
        config = AutoConfig.from_pretrained(source)
        refuse_other_architecture(config, model)
        self.open_processor(model, source).save_pretrained(folder)
        config.save_pretrained(folder)

    @abstractmethod
    def open_processor(self, model: Model, description: Path | None) -> Any:
        """Opens the processor of a description's folder, or with None that of pretrained weights.

        Raises:
            ConfigError: it cannot be opened, or does not fit the config.
        """

    def model_config(self, model: Model, processor: Any) -> Any:
        """The config.json of a model that need not be loaded; of a new one without a processor, for the text `a`.

        Raises:
            ConfigError: that of pretrained weights cannot be opened.
        """
        if model.init == "pretrained":
            return from_pretrained(model, AutoConfig)
        with tempfile.TemporaryDirectory(prefix="rayscribe-") as folder:
            self.write_description(Path(folder), ["a"], model)
            return AutoConfig.from_pretrained(folder)

    def misfits(self, config: TrainConfig, limits: Limits) -> list[str]:
        """What of a config its model, whose limits are known, cannot be trained with, a line each."""
        if not config.augment.frequency_masks or limits.has_bins:
            return []
        return [
            f"augment.frequency_masks is {config.augment.frequency_masks}, but this model is given samples, which have "
            "no frequency bins: set it to 0; model.apply_spec_augment and mask_feature_prob mask inside the model"
        ]

    def check_texts(self, processor: Any, texts: Iterable[str]) -> str | None:
        """A warning about a split's transcripts; None if there is nothing to report.

        Raises:
            ConfigError: they cannot be what the processor is for.
        """
        return None

    def language_code(self, language: str) -> str:
        """The code of a language given by name or code, e.g. `Serbian` → `sr`.

        Raises:
            ConfigError: the family does not know it.
        """
        return code_or_name(language)

    def load_recognizer(
        self, model: Model, description: Path | None, seed: int, *, weights: Path | None = None
    ) -> Recognizer:
        """Builds the model on this process, the same on every rank.

        Args:
            model: The config's; those weights that it does not begin anew are of its `dtype`.
            description: Folder of `write_description` or `adopt_description`, or None for pretrained weights.
            seed: Seed of new weights.
            weights: A checkpoint's files, for the weights of a model that is described. None: new weights.

        Raises:
            ConfigError: the weights cannot be opened.
        """
        processor = self.open_processor(model, description)
        loaded: Recognizer = resolve_name(self.recognizer).load(self, model, processor, description, seed, weights)
        return loaded

    def open_exported(self, folder: Path, dtype: str = "float32") -> Recognizer:
        """Opens a folder with model and processor, as written by an export or a checkpoint; `dtype` is its weights'."""
        network = self.auto_class(AutoConfig.from_pretrained(folder)).from_pretrained(folder, dtype=dtype)
        part: Any = ModelPart(name_or_path=str(folder), dtype=dtype)
        opened: Recognizer = resolve_name(self.recognizer)(network, self.open_processor(part, folder), self)
        return opened

    def export_processor(self, folder: Path) -> None:
        """Changes the files of a saved processor, next to its model, into those of an export, whatever reads them.

        By default they stay, `processor_config.json` among them.
        """
