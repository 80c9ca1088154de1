"""The GRU family: its processor, labels and limits, all of it without weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rayscribe.trainers.errors import ConfigError
from rayscribe.trainers.models.adaptation.network_parts import Parts
from rayscribe.trainers.models.ctc.ctc_part import CtcPart
from rayscribe.trainers.models.ctc.ctc_scratch import for_tokenizer, new_tokenizer, processor_of
from rayscribe.trainers.models.family import Family
from rayscribe.trainers.models.label_codec import Limits
from rayscribe.trainers.models.pretrained import open_pretrained
from rayscribe.trainers.models.tokenizer_processor import split_processor, tokenizer_fingerprint
from transformers import (
    AutoFeatureExtractor,
    AutoModelForCTC,
    AutoTokenizer,
    SeamlessM4TFeatureExtractor,
)

from speech_extras.gru_config import LIMITS, GruConfig
from speech_extras.gru_part import GruPart


class GruFamily(Family[GruPart]):
    """A forward GRU with an output layer for the characters of the training text."""

    name = "gru"
    model_types = (GruConfig.model_type,)

    context_s = LIMITS.context_s
    # Loads torch, only when a model is loaded.
    recognizer = "speech_extras.gru_recognizer:GruRecognizer"

    def limits(self, config: Any, processor: Any) -> Limits:
        return LIMITS

    def auto_class(self, config: Any) -> Any:
        # Only now: it takes torch. The module registers the network.
        import speech_extras.gru_recognizer  # noqa: F401, PLC0415

        return AutoModelForCTC

    def parts(self, network: Any) -> Parts:
        return {"encoder": ["gru"], "head": ["head"]}

    def new_processor(self, texts: Sequence[str], model: GruPart) -> Any:
        tokenizer = new_tokenizer(texts, CtcPart(init="scratch", vocabulary="characters"))
        return processor_of(SeamlessM4TFeatureExtractor(), tokenizer)

    def write_description(self, folder: Path, texts: Sequence[str], model: GruPart) -> None:
        processor = self.new_processor(texts, model)
        sizes = {"hidden_size": model.hidden_size, "num_hidden_layers": model.hidden_layers}
        GruConfig(**sizes, **for_tokenizer(processor.tokenizer)).save_pretrained(folder)
        processor.save_pretrained(folder)

    def adopt_description(self, source: Path, folder: Path, model: GruPart) -> None:
        config = GruConfig.from_pretrained(source)
        found = (config.hidden_size, config.num_hidden_layers)
        if model.init == "scratch" and found != (model.hidden_size, model.hidden_layers):
            raise ConfigError(
                f"run.resume: the checkpoint's hidden_size and hidden_layers are {found}: set model to them"
            )
        config.save_pretrained(folder)
        _open_processor(str(source)).save_pretrained(folder)

    def open_processor(self, model: GruPart, description: Path | None) -> Any:
        if description is not None:
            return _open_processor(str(description))
        return open_pretrained(model, lambda: _open_processor(str(model.name_or_path), model.revision or "main"))

    def encode_labels(self, processor: Any, texts: Sequence[str]) -> list[list[int]]:
        ids: list[list[int]] = processor.tokenizer(list(texts), add_special_tokens=False).input_ids if texts else []
        return ids

    def labels_fingerprint(self, processor: Any) -> str:
        return tokenizer_fingerprint(processor.tokenizer, "gru")

    def export_processor(self, folder: Path) -> None:
        split_processor(folder)


def _open_processor(name: str, revision: str = "main") -> Any:
    extractor = AutoFeatureExtractor.from_pretrained(name, revision=revision)
    return processor_of(extractor, AutoTokenizer.from_pretrained(name, revision=revision))
