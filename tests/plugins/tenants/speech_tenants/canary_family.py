"""The family of Canary's encoder-decoder models, whose prompt names the language twice."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import transformers
from rayscribe.trainers.errors import ConfigError
from rayscribe.trainers.models.adaptation.network_parts import Parts, encoder_decoder_parts
from rayscribe.trainers.models.family import Family
from rayscribe.trainers.models.label_codec import Limits
from rayscribe.trainers.models.language_names import code_or_name
from rayscribe.trainers.models.pretrained import from_pretrained
from rayscribe.trainers.models.tokenizer_processor import tokenizer_fingerprint

from speech_tenants.parts import CanaryPart

if TYPE_CHECKING:
    from rayscribe.trainers.models.recognizer import Recognizer

START = "<|startofcontext|>"
BEFORE, BEHIND = ["<|startoftranscript|>", "<|emo:undefined|>"], ["<|pnc|>", "<|noitn|>", "<|notimestamp|>"]
CONTEXT_S = 40.0
# Where a tokenizer keeps the language of labels; it is saved with it.
LANGUAGE = "source_language"


class CanaryFamily(Family[CanaryPart]):
    """Pretrained weights with their own processor."""

    name = "canary"
    model_types = ("canary",)

    def context_s(self, model: CanaryPart) -> float:
        return float(model.max_context_s or CONTEXT_S)

    def auto_class(self, config: Any) -> Any:
        return transformers.AutoModelForSpeechSeq2Seq

    def parts(self, network: Any) -> Parts:
        return encoder_decoder_parts(network)

    def open_processor(self, model: CanaryPart, description: Path | None) -> Any:
        processor = from_pretrained(model, transformers.AutoProcessor) if description is None else None
        if processor is None:
            return transformers.AutoProcessor.from_pretrained(description)
        if model.language is not None:
            processor.tokenizer.init_kwargs[LANGUAGE] = self.language_code(model.language)
        self.language_prefix(processor, None)
        return processor

    def limits(self, config: Any, processor: Any) -> Limits:
        positions, prefix = config.decoder_config.max_position_embeddings, len(self.language_prefix(processor, None))
        return Limits(CONTEXT_S, positions - 1, prefix, new_tokens=positions - prefix - 1, full_context=False)

    def encode_labels(self, processor: Any, texts: Sequence[str]) -> list[list[int]]:
        prefix, end = self.language_prefix(processor, None), processor.tokenizer.eos_token_id
        ids = processor.tokenizer(list(texts), add_special_tokens=False).input_ids if texts else []
        return [[*prefix, *row, end] for row in ids]

    def language_prefix(self, processor: Any, language: str | None) -> list[int]:
        if processor is None:
            return []
        code = self.language_code(language or processor.tokenizer.init_kwargs.get(LANGUAGE, "en"))
        token = f"<|{code}|>"
        if token not in processor.tokenizer.get_vocab():
            raise ConfigError(f"the model has no token {token}")
        ids: list[int] = processor.tokenizer.convert_tokens_to_ids([*BEFORE, token, token, *BEHIND])
        return ids

    def labels_fingerprint(self, processor: Any) -> str:
        return tokenizer_fingerprint(processor.tokenizer, "")

    def language_code(self, language: str) -> str:
        return code_or_name(language)

    def load_recognizer(
        self, model: CanaryPart, description: Path | None, seed: int, *, weights: Path | None = None
    ) -> Recognizer:
        from speech_tenants.canary_recognizer import CanaryRecognizer  # noqa: PLC0415

        processor, network = self.open_processor(model, description), self.auto_class(None)
        if weights is not None:
            return CanaryRecognizer(network.from_pretrained(weights, dtype="float32"), processor, self)
        return CanaryRecognizer(from_pretrained(model, network, dtype="float32"), processor, self)

    def open_exported(self, folder: Path) -> Recognizer:
        return self.load_recognizer(CanaryPart(name_or_path=str(folder)), None, seed=0)
