"""The family of Canary's encoder-decoder models, whose prompt names the language twice."""

from typing import Any

import transformers
from rayscribe.trainers.errors import ConfigError
from rayscribe.trainers.models.adaptation.network_parts import Parts, encoder_decoder_parts
from rayscribe.trainers.models.label_codec import Limits

from speech_tenants.parts import CanaryPart
from speech_tenants.pretrained_family import CONTEXT_S, PretrainedFamily

START = "<|startofcontext|>"
BEFORE, BEHIND = ["<|startoftranscript|>", "<|emo:undefined|>"], ["<|pnc|>", "<|noitn|>", "<|notimestamp|>"]


class CanaryFamily(PretrainedFamily[CanaryPart]):
    """The language stands twice in a prompt that each label begins with."""

    name = "canary"
    model_types = ("canary",)
    part = CanaryPart
    recognizer = "speech_tenants.canary_recognizer:CanaryRecognizer"

    def auto_class(self, config: Any) -> Any:
        return transformers.AutoModelForSpeechSeq2Seq

    def parts(self, network: Any) -> Parts:
        return encoder_decoder_parts(network)

    def limits(self, config: Any, processor: Any) -> Limits:
        positions, prefix = config.decoder_config.max_position_embeddings, len(self.language_prefix(processor, None))
        return Limits(CONTEXT_S, positions - 1, prefix, new_tokens=positions - prefix - 1, full_context=False)

    def language_prefix(self, processor: Any, language: str | None) -> list[int]:
        if processor is None:
            return []
        code = self.language_of(processor, language)
        token = f"<|{code}|>"
        if token not in processor.tokenizer.get_vocab():
            raise ConfigError(f"the model has no token {token}")
        ids: list[int] = processor.tokenizer.convert_tokens_to_ids([*BEFORE, token, token, *BEHIND])
        return ids
