"""Defines the model part for encoder-decoder models other than Whisper. Imports no torch."""

from typing import ClassVar, Self

from pydantic import Field

from trainers.config.parts.decode_part import DecodePart, GenerationPart
from trainers.config.parts.model_part import ModelPart
from trainers.config.parts.model_source import SourceText
from trainers.config.parts.part import rule


class Seq2SeqPart(ModelPart):
    """An encoder-decoder model other than Whisper, which starts from pretrained weights."""

    implementation: ClassVar[str] = f"{__package__}.seq2seq_family:Seq2SeqFamily"
    decode_part: ClassVar[type[DecodePart]] = GenerationPart
    unsupported: ClassVar[tuple[str, ...]] = ("training.full_context_fraction",)

    encoder: SourceText | None = Field(
        None,
        description="pretrained: an encoder of speech, such as facebook/wav2vec2-base, that begins a new model with "
        "decoder. Written as name_or_path, which must then be null. null: name_or_path is a complete model.",
    )
    decoder: SourceText | None = Field(
        None, description="pretrained: a decoder of text for encoder, such as gpt2. Written as name_or_path."
    )

    @property
    def names_weights(self) -> bool:
        return super().names_weights or self.encoder is not None or self.decoder is not None

    @rule
    def _parts_fit(self) -> Self:
        parts = {"encoder": self.encoder, "decoder": self.decoder}
        given = [name for name, value in parts.items() if value is not None]
        if len(given) == 1:
            raise ValueError(f"{given[0]} is given alone: a new model begins with an encoder and a decoder")
        if given and self.name_or_path is not None:
            raise ValueError(
                "name_or_path is a complete model, and encoder and decoder begin a new one: keep one of them"
            )
        return self

    @rule
    def _begins_with_weights(self) -> Self:
        if self.init == "scratch":
            raise ValueError("init is scratch, but the family seq2seq begins with weights: set model.init: pretrained")
        return self
