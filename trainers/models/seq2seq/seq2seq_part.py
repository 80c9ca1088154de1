"""What the config says of an encoder-decoder model other than Whisper. Imports no torch."""

from typing import ClassVar, Self

from pydantic import model_validator

from trainers.config.parts.model_part import ModelPart


class Seq2SeqPart(ModelPart):
    """An encoder-decoder model other than Whisper, which begins with weights."""

    implementation: ClassVar[str] = "trainers.models.seq2seq.seq2seq_family:Seq2SeqFamily"
    unsupported: ClassVar[tuple[str, ...]] = (
        "decode.method",
        "training.full_context_fraction",
        "training.full_context_matching",
    )

    @model_validator(mode="after")
    def _begins_with_weights(self) -> Self:
        if self.init == "scratch":
            raise ValueError("init is scratch, but the family seq2seq begins with weights: set model.init: pretrained")
        return self
