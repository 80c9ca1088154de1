"""The config's model part: which recognizer is trained. See `schema`."""

from typing import Annotated, Literal, Self

from pydantic import Field, ValidationInfo, model_validator

from trainers.config.parts.part import Location, Part, Positive, trains

Dropout = Annotated[float, Field(ge=0, lt=1)]


class ModelPart(Part):
    """The recognizer: pretrained weights, or sizes of a new one."""

    init: Literal["pretrained", "scratch"] = Field("pretrained", description="Start from weights, or from sizes.")
    name_or_path: Location | None = Field(None, description="pretrained: Hub id, or folder. null: for scratch.")
    revision: str | None = Field(None, description="Git revision on the Hub. null: its newest.")
    language: str | None = Field(
        None, description="Language of the speech, in Whisper's words (english). null: an English-only model."
    )
    task: Literal["transcribe", "translate"] = Field("transcribe", description="What the transcripts are.")
    max_context_s: Positive | None = Field(
        None,
        le=30,
        description="Longest input in whole seconds; clips are padded to the edge of their own length bucket. "
        "null: every clip is padded to the model's full 30 s, as the reference does. "
        "Opt-in for pretrained weights: they must be adapted to short input before it helps.",
    )
    vocab_size: Positive = Field(1000, ge=300, description="scratch: most byte-level BPE tokens learned from the text.")
    d_model: Positive = Field(128, description="scratch: width.")
    encoder_layers: Positive = Field(2, description="scratch: encoder layers.")
    decoder_layers: Positive = Field(1, description="scratch: decoder layers.")
    attention_heads: Positive = Field(4, description="scratch: attention heads of every layer; must divide d_model.")
    ffn_dim: Positive | None = Field(None, description="scratch: width of the feed-forward layers. null: 4 × d_model.")
    num_mel_bins: Positive = Field(80, description="scratch: mel bins.")
    max_label_tokens: Positive = Field(448, le=448, description="scratch: most label tokens of an utterance.")
    dropout: Dropout | None = Field(None, description="Dropout. null: the model's own; 0 for scratch.")
    attention_dropout: Dropout | None = Field(None, description="Dropout of attention weights. null: the model's own.")
    activation_dropout: Dropout | None = Field(
        None, description="Dropout in feed-forward layers. null: the model's own."
    )
    apply_spec_augment: bool = Field(False, description="Mask stretches of frames and of mel bins in training.")
    mask_time_prob: Dropout = Field(0.05, description="SpecAugment: about this fraction of frames is masked.")
    mask_feature_prob: Dropout = Field(0.0, description="SpecAugment: about this fraction of mel bins is masked.")

    @model_validator(mode="after")
    def _init_fits(self, info: ValidationInfo) -> Self:
        if self.init == "pretrained" and self.name_or_path is None and trains(info):
            raise ValueError("name_or_path is missing: name a Hub id or folder, or set model.init: scratch")
        if self.init == "scratch" and self.name_or_path is not None:
            raise ValueError(f"name_or_path is {self.name_or_path} but init is scratch: set model.init: pretrained")
        if self.init == "scratch" and self.language is None and trains(info):
            raise ValueError("language is missing: a scratch model needs one, e.g. model.language: English")
        if self.d_model % self.attention_heads:
            raise ValueError(f"d_model {self.d_model} must be a multiple of attention_heads {self.attention_heads}")
        return self
