"""What the families have in common: models that begin with weights, and a processor that AutoProcessor opens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from rayscribe.trainers.config.parts.model_part import ModelPart
from rayscribe.trainers.models.family import Family
from rayscribe.trainers.models.language_names import code_or_name
from rayscribe.trainers.models.pretrained import from_pretrained, network_options
from rayscribe.trainers.models.tokenizer_processor import tokenizer_fingerprint
from transformers import AutoProcessor

if TYPE_CHECKING:
    from rayscribe.trainers.models.recognizer import Recognizer

CONTEXT_S = 40.0
# Where a tokenizer keeps the language of labels; it is saved with it.
LANGUAGE = "source_language"

Model = TypeVar("Model", bound=ModelPart)


class PretrainedFamily(Family[Model]):
    """Pretrained weights with their own processor.

    Attributes:
        part: Its part of the config.
        recognizer: Module and class of its recognizer, which take torch.
    """

    part: ClassVar[type[ModelPart]]
    recognizer: ClassVar[str]

    context_s = CONTEXT_S

    def open_processor(self, model: Model, description: Path | None) -> Any:
        if description is not None:
            return AutoProcessor.from_pretrained(description)
        processor = from_pretrained(model, AutoProcessor)
        if model.language is not None:
            processor.tokenizer.init_kwargs[LANGUAGE] = code_or_name(model.language)
        self.language_prefix(processor, None)
        return processor

    def encode_labels(self, processor: Any, texts: Sequence[str]) -> list[list[int]]:
        """What stands before a text in its language, the text, and an end token where the tokenizer has one."""
        prefix, end_id = self.language_prefix(processor, None), processor.tokenizer.eos_token_id
        end = [end_id] if end_id is not None else []
        ids = processor.tokenizer(list(texts), add_special_tokens=False).input_ids if texts else []
        return [[*prefix, *row, *end] for row in ids]

    def language_of(self, processor: Any, language: str | None) -> str:
        """The code of a language; None: that of the processor's labels."""
        return code_or_name(language or processor.tokenizer.init_kwargs.get(LANGUAGE, "en"))

    def labels_fingerprint(self, processor: Any) -> str:
        return tokenizer_fingerprint(processor.tokenizer, "")

    def load_recognizer(
        self, model: Model, description: Path | None, seed: int, *, weights: Path | None = None
    ) -> Recognizer:
        auto_class, options = self.auto_class(self.model_config(model, None)), network_options(model)
        network = (
            from_pretrained(model, auto_class, **options)
            if weights is None
            else auto_class.from_pretrained(weights, **options)
        )
        return resolve_name(self.recognizer)(network, self.open_processor(model, description), self)

    def open_exported(self, folder: Path, dtype: str = "float32") -> Recognizer:
        part = self.part.model_validate({"name_or_path": str(folder), "dtype": dtype})
        return self.load_recognizer(part, None, seed=0)
