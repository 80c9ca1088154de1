"""The config's adapt part: which weights are trained. See `schema`."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from trainers.config.parts.part import Part, Positive, rule

Target = Annotated[str, Field(min_length=1)]


class AdaptPart(Part):
    """Selects the weights of the model that are trained; the others stay the same, bit for bit."""

    method: Literal["full", "freeze_encoder", "decoder_only", "last_n_layers", "lora"] = Field(
        "full",
        description="full: all of them. freeze_encoder: all but the encoder's; of a CTC model, its head. decoder_only: "
        "the language-model side, which is the decoder's embeddings, self-attention, feed-forward layers and norms; "
        "its cross-attention stays as it is, and so does all that is not the decoder's. last_n_layers: the last n "
        "layers of the encoder and of the decoder; a CTC model's last n and its head. lora: a low-rank adapter next to "
        "some weights, which is merged into them in the end.",
    )
    n: Positive | None = Field(None, description="last_n_layers: how many. null: for the other methods.")
    r: Positive = Field(16, description="lora: rank.")
    alpha: Positive = Field(32, description="lora: the adapter's output is multiplied by alpha / r.")
    dropout: float = Field(0.05, ge=0, lt=1, description="lora: dropout of the adapter's input.")
    target_modules: list[Target] | None = Field(
        None,
        min_length=1,
        description="lora: the linear layers that get an adapter, by the ends of their names, e.g. [q_proj, v_proj]. "
        "null: all projections of every attention.",
    )

    @rule
    def _fields_fit_the_method(self) -> Iterator[str]:
        if self.method == "last_n_layers" and self.n is None:
            yield "n is missing: say how many layers are trained, e.g. adapt.n: 2"
        if self.method != "last_n_layers" and self.n is not None:
            yield f"n is {self.n}, but method is {self.method}: set method: last_n_layers, or n: null"
        if self.method != "lora":
            for name in ("r", "alpha", "dropout", "target_modules"):
                value, default = getattr(self, name), type(self).model_fields[name].default
                if value != default:
                    yield f"{name} is {value}, but method is {self.method}: set method: lora, or leave {name} out"
