"""The family of Parakeet's token-and-duration transducers: processor, labels and limits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import transformers
from rayscribe.trainers.models.adaptation.network_parts import Parts
from rayscribe.trainers.models.family import Family
from rayscribe.trainers.models.label_codec import Limits
from rayscribe.trainers.models.language_names import code_or_name
from rayscribe.trainers.models.pretrained import from_pretrained
from rayscribe.trainers.models.tokenizer_processor import tokenizer_fingerprint

from speech_tenants.parts import ParakeetTdtPart

if TYPE_CHECKING:
    from rayscribe.trainers.models.recognizer import Recognizer

CONTEXT_S, LABEL_TOKENS = 40.0, 512


class ParakeetTdtFamily(Family[ParakeetTdtPart]):
    """Pretrained weights with their own processor."""

    name = "parakeet-tdt"
    model_types = ("parakeet_tdt",)

    def context_s(self, model: ParakeetTdtPart) -> float:
        return float(model.max_context_s or CONTEXT_S)

    def auto_class(self, config: Any) -> Any:
        return transformers.AutoModelForTDT

    def parts(self, network: Any) -> Parts:
        return {
            "encoder": ["encoder"],
            "projector": ["encoder_projector"],
            "prediction_network": ["decoder"],
            "joint": ["joint"],
        }

    def open_processor(self, model: ParakeetTdtPart, description: Path | None) -> Any:
        if description is not None:
            return transformers.AutoProcessor.from_pretrained(description)
        return from_pretrained(model, transformers.AutoProcessor)

    def limits(self, config: Any, processor: Any) -> Limits:
        return Limits(CONTEXT_S, LABEL_TOKENS, prefix_tokens=0, new_tokens=LABEL_TOKENS, full_context=False)

    def encode_labels(self, processor: Any, texts: Sequence[str]) -> list[list[int]]:
        ids: list[list[int]] = processor.tokenizer(list(texts), add_special_tokens=False).input_ids if texts else []
        return ids

    def labels_fingerprint(self, processor: Any) -> str:
        return tokenizer_fingerprint(processor.tokenizer, "")

    def language_code(self, language: str) -> str:
        return code_or_name(language)

    def load_recognizer(
        self, model: ParakeetTdtPart, description: Path | None, seed: int, *, weights: Path | None = None
    ) -> Recognizer:
        from speech_tenants.tdt_recognizer import TdtRecognizer  # noqa: PLC0415

        processor, network = self.open_processor(model, description), transformers.AutoModelForTDT
        if weights is not None:
            return TdtRecognizer(network.from_pretrained(weights, dtype="float32"), processor, self)
        return TdtRecognizer(from_pretrained(model, network, dtype="float32"), processor, self)

    def open_exported(self, folder: Path) -> Recognizer:
        return self.load_recognizer(ParakeetTdtPart(name_or_path=str(folder)), None, seed=0)
