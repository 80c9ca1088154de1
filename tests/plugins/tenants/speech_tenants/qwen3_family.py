"""The family of Qwen3-ASR: a language model that continues a chat in which an utterance stands."""

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
from transformers.models.qwen3_asr.processing_qwen3_asr import LANGUAGE_CODE_TO_NAME

from speech_tenants.parts import Qwen3AsrPart

if TYPE_CHECKING:
    from rayscribe.trainers.models.recognizer import Recognizer

CONTEXT_S, LABEL_TOKENS = 40.0, 512
# Where a tokenizer keeps the language of labels; it is saved with it.
LANGUAGE = "source_language"


class Qwen3AsrFamily(Family[Qwen3AsrPart]):
    """Pretrained weights with their own processor."""

    name = "qwen3-asr"
    model_types = ("qwen3_asr",)

    def context_s(self, model: Qwen3AsrPart) -> float:
        return float(model.max_context_s or CONTEXT_S)

    def auto_class(self, config: Any) -> Any:
        return transformers.AutoModelForMultimodalLM

    def parts(self, network: Any) -> Parts:
        return {
            "encoder": ["model.audio_tower"],
            "projector": ["model.multi_modal_projector"],
            "language_model": ["model.language_model"],
        }

    def open_processor(self, model: Qwen3AsrPart, description: Path | None) -> Any:
        if description is not None:
            return transformers.AutoProcessor.from_pretrained(description)
        processor = from_pretrained(model, transformers.AutoProcessor)
        if model.language is not None:
            processor.tokenizer.init_kwargs[LANGUAGE] = self.language_code(model.language)
        return processor

    def limits(self, config: Any, processor: Any) -> Limits:
        prefix = len(self.language_prefix(processor, None))
        return Limits(CONTEXT_S, LABEL_TOKENS, prefix, new_tokens=LABEL_TOKENS - prefix, full_context=False)

    def encode_labels(self, processor: Any, texts: Sequence[str]) -> list[list[int]]:
        prefix, end = self.language_prefix(processor, None), processor.tokenizer.eos_token_id
        return [[*prefix, *row, end] for row in (processor.tokenizer(list(texts)).input_ids if texts else [])]

    def language_prefix(self, processor: Any, language: str | None) -> list[int]:
        """What the model writes before a text: the English name of a language, or its code where that has none."""
        if processor is None:
            return []
        code = self.language_code(language or processor.tokenizer.init_kwargs.get(LANGUAGE, "en"))
        ids: list[int] = processor.tokenizer(f"language {LANGUAGE_CODE_TO_NAME.get(code, code)}<asr_text>").input_ids
        return ids

    def labels_fingerprint(self, processor: Any) -> str:
        return tokenizer_fingerprint(processor.tokenizer, "")

    def language_code(self, language: str) -> str:
        return code_or_name(language)

    def load_recognizer(
        self, model: Qwen3AsrPart, description: Path | None, seed: int, *, weights: Path | None = None
    ) -> Recognizer:
        from speech_tenants.qwen3_recognizer import Qwen3AsrRecognizer  # noqa: PLC0415

        processor, network = self.open_processor(model, description), self.auto_class(None)
        if weights is not None:
            return Qwen3AsrRecognizer(network.from_pretrained(weights, dtype="float32"), processor, self)
        return Qwen3AsrRecognizer(from_pretrained(model, network, dtype="float32"), processor, self)

    def open_exported(self, folder: Path) -> Recognizer:
        return self.load_recognizer(Qwen3AsrPart(name_or_path=str(folder)), None, seed=0)
