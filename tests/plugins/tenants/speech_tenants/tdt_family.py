"""The family of Parakeet's token-and-duration transducers."""

from typing import Any

import transformers
from rayscribe.trainers.models.adaptation.network_parts import Parts
from rayscribe.trainers.models.label_codec import Limits

from speech_tenants.parts import ParakeetTdtPart
from speech_tenants.pretrained_family import CONTEXT_S, PretrainedFamily

LABEL_TOKENS = 512


class ParakeetTdtFamily(PretrainedFamily[ParakeetTdtPart]):
    """Labels are a text's tokens alone; the duration of each is not among them."""

    name = "parakeet-tdt"
    model_types = ("parakeet_tdt",)
    part = ParakeetTdtPart
    recognizer = "speech_tenants.tdt_recognizer:TdtRecognizer"

    def auto_class(self, config: Any) -> Any:
        return transformers.AutoModelForTDT

    def parts(self, network: Any) -> Parts:
        return {
            "encoder": ["encoder"],
            "projector": ["encoder_projector"],
            "prediction_network": ["decoder"],
            "joint": ["joint"],
        }

    def limits(self, config: Any, processor: Any) -> Limits:
        return Limits(CONTEXT_S, LABEL_TOKENS, prefix_tokens=0, new_tokens=LABEL_TOKENS, full_context=False)
