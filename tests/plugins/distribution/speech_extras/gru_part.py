"""What the config says of a GRU model. Imports no torch: recipes are checked where there is none."""

from typing import ClassVar

from pydantic import Field
from rayscribe.trainers.config.parts.decode_part import DecodePart
from rayscribe.trainers.config.parts.model_part import ModelPart, SizeEstimate
from rayscribe.trainers.config.parts.part import Positive
from rayscribe.trainers.models.ctc.ctc_decode_part import CtcDecodePart


class GruPart(ModelPart):
    """A GRU that reads forward only, trained with CTC: pretrained weights, or sizes of a new one."""

    implementation: ClassVar[str] = "speech_extras.gru_family:GruFamily"
    # What a recipe has under `decode:`.
    decode_part: ClassVar[type[DecodePart]] = CtcDecodePart
    # Refused by name, because they would have no effect.
    unsupported: ClassVar[tuple[str, ...]] = (
        "training.full_context_fraction",
        "training.training_args.label_smoothing_factor",
    )

    hidden_size: Positive = Field(128, description="scratch: width of the layers.")
    hidden_layers: Positive = Field(2, description="scratch: GRU layers.")

    @property
    def size(self) -> SizeEstimate:
        """Of new weights: a GRU layer has six square matrices."""
        if self.init != "scratch":
            return SizeEstimate()
        return SizeEstimate(6.0 * self.hidden_layers * self.hidden_size**2, self.hidden_size)
