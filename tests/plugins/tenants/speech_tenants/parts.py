"""What the config says of each tenant: pretrained weights alone. Imports no torch."""

from typing import ClassVar

from rayscribe.trainers.config.parts.decode_part import DecodePart, GenerationPart
from rayscribe.trainers.config.parts.model_part import ModelPart


class ParakeetTdtPart(ModelPart):
    """A Parakeet with a token-and-duration transducer."""

    implementation: ClassVar[str] = "speech_tenants.tdt_family:ParakeetTdtFamily"
    decode_part: ClassVar[type[DecodePart]] = GenerationPart
    unsupported: ClassVar[tuple[str, ...]] = ("decode.num_beams",)


class CanaryPart(ModelPart):
    """A Canary of 25 languages."""

    implementation: ClassVar[str] = "speech_tenants.canary_family:CanaryFamily"
    decode_part: ClassVar[type[DecodePart]] = GenerationPart


class Qwen3AsrPart(ModelPart):
    """A Qwen3-ASR, a speech language model."""

    implementation: ClassVar[str] = "speech_tenants.qwen3_family:Qwen3AsrFamily"
    decode_part: ClassVar[type[DecodePart]] = GenerationPart
