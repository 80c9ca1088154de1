"""The family of Qwen3-ASR: a language model that continues a chat in which an utterance stands."""

from typing import Any

import transformers
from rayscribe.trainers.models.adaptation.network_parts import Parts
from rayscribe.trainers.models.label_codec import Limits
from transformers.models.qwen3_asr.processing_qwen3_asr import LANGUAGE_CODE_TO_NAME

from speech_tenants.parts import Qwen3AsrPart
from speech_tenants.pretrained_family import CONTEXT_S, PretrainedFamily

LABEL_TOKENS = 512


class Qwen3AsrFamily(PretrainedFamily[Qwen3AsrPart]):
    """Each label begins as the model's answer does, with the name of the language."""

    name = "qwen3-asr"
    model_types = ("qwen3_asr",)
    part = Qwen3AsrPart
    recognizer = "speech_tenants.qwen3_recognizer:Qwen3AsrRecognizer"

    def auto_class(self, config: Any) -> Any:
        return transformers.AutoModelForMultimodalLM

    def parts(self, network: Any) -> Parts:
        return {
            "encoder": ["model.audio_tower"],
            "projector": ["model.multi_modal_projector"],
            "language_model": ["model.language_model"],
        }

    def limits(self, config: Any, processor: Any) -> Limits:
        prefix = len(self.language_prefix(processor, None))
        return Limits(CONTEXT_S, LABEL_TOKENS, prefix, new_tokens=LABEL_TOKENS - prefix, full_context=False)

    def language_prefix(self, processor: Any, language: str | None) -> list[int]:
        """What the model writes before a text: the English name of a language, or its code where that has none."""
        if processor is None:
            return []
        code = self.language_of(processor, language)
        ids: list[int] = processor.tokenizer(f"language {LANGUAGE_CODE_TO_NAME.get(code, code)}<asr_text>").input_ids
        return ids
