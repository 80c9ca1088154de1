"""The config's model part: the recognizer to train. See `schema`.

Each family has its own subclass with additional fields; `family_table` lists the families.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

from pydantic import Field, ValidationInfo

from trainers.config.parts.decode_part import DecodePart
from trainers.config.parts.model_source import ModelSource, SourceText
from trainers.config.parts.part import Part, Positive, rule, trains
from trainers.config.parts.strategy_part import StrategyPart
from trainers.config.parts.training_part import AdaptPart, TrainingPart

Dropout = Annotated[float, Field(ge=0, lt=1)]
# The number of outputs, 20 ms each, of the shortest bucket, half a second, which a mask must not exceed.
FEWEST_OUTPUTS = 24


class SizeEstimate(NamedTuple):
    """A model's approximate number of weights and smallest layer width, from its config alone; 0 if unknown."""

    weights: float = 0.0
    width: int = 0


class ModelPart(Part):
    """The recognizer: pretrained weights, or the sizes of a new one."""

    # Module and class of the family, see `models.family.Family`.
    implementation: ClassVar[str]
    # The family's config part for generating hypotheses.
    decode_part: ClassVar[type[DecodePart]] = DecodePart
    # Dotted names of fields of other parts that have no effect for the family.
    unsupported: ClassVar[tuple[str, ...]] = ()
    # Fields that name a file that training reads.
    files: ClassVar[tuple[str, ...]] = ()
    # Fields because of which each rank randomly chooses which layers it runs.
    drawn_by_rank: ClassVar[tuple[str, ...]] = ()
    # Hub ids of released weights, by size (`--model_size`).
    released: ClassVar[Mapping[str, str]] = {}

    init: Literal["pretrained", "scratch"] = Field(
        "pretrained", description="pretrained: start from given weights. scratch: from new ones."
    )
    name_or_path: SourceText | None = Field(
        None,
        description="pretrained: location of the weights. A Hub id, also as id@revision; a folder; its s3:// URL; the "
        "https:// URL of a zip or tar of it, also with #sha256=…; run:<name>, the best model of another run; or a "
        "checkpoint of OpenAI's Whisper. null: for scratch.",
    )
    family: str | None = Field(
        None, description="Model family, e.g. whisper or ctc. null: that of the weights; whisper for scratch."
    )
    revision: str | None = Field(None, description="Git revision of name_or_path on the Hub. null: the newest.")
    tokenizer_name: SourceText | None = Field(
        None, description="pretrained: location of the tokenizer, like name_or_path. null: with the weights."
    )
    feature_extractor_name: SourceText | None = Field(
        None, description="pretrained: location of the feature extractor, like name_or_path. null: with the weights."
    )
    allow_pickle: bool = Field(
        False,
        description="Also open pickled weights (pytorch_model.bin, OpenAI's .pt). false: safetensors only.",
    )
    language: str | None = Field(
        None,
        description="Language of the speech, by name or code: English, en, en-US, eng_Latn. null: for CTC models and "
        "English-only Whispers.",
    )
    max_context_s: Positive | None = Field(
        None,
        le=120,
        description="Longest input in whole seconds; clips are padded to the length of their bucket. A pretrained "
        "Whisper must be trained on short input before it recognizes it well. null: Whisper's clips are padded to "
        "30 s, as in the reference; CTC models take up to 120 s, in buckets.",
    )
    attn_implementation: Literal["eager", "sdpa", "flash_attention_2"] | None = Field(
        None, description="Implementation of attention, by its name in transformers. null: the library's choice."
    )
    dtype: Literal["float32", "bfloat16"] = Field(
        "float32",
        description="Type of pretrained weights in memory. bfloat16 needs half the memory of float32, but only weights "
        "that are not trained can have it: under an adapter (adapt.method: lora), or for scoring. training.bf16 "
        "computes in bfloat16 with float32 weights.",
    )

    @rule
    def _init_fits(self, info: ValidationInfo) -> Self:
        if self.init == "pretrained" and not self.names_weights and trains(info):
            raise ValueError("name_or_path is missing: name a Hub id or folder, or set model.init: scratch")
        if self.init == "scratch" and self.name_or_path is not None:
            named = ModelSource.parse(self.name_or_path).text
            fix = "set model.init: pretrained, or for a new model name_or_path: null (--set model.name_or_path=null)"
            raise ValueError(f"name_or_path is {named}, but init is scratch: {fix}")
        if self.name_or_path is not None and self.revision is not None:
            try:
                ModelSource.parse(self.name_or_path, self.revision)
            except ValueError as error:
                raise ValueError(f"name_or_path {error}") from None
        return self

    @property
    def names_weights(self) -> bool:
        """True if the location of pretrained weights is set."""
        return self.name_or_path is not None

    @property
    def token_language(self) -> str | None:
        """The language whose token the model gets; None if it gets none."""
        return self.language

    def refuse_early(self) -> None:
        """Finds errors without loading torch; those that depend on the weights are found later.

        Raises:
            ConfigError: Training with this part would fail with the same message.
        """

    def misfits(self, adapt: AdaptPart, training: TrainingPart, strategy: StrategyPart) -> Iterable[str]:
        """Returns conflicts with other parts that prevent training, as far as they are known without the weights."""
        return ()

    @property
    def is_regularized(self) -> bool:
        """True if the loss has a term that depends on the weights at the start of the run."""
        return False

    @property
    def masks_features(self) -> bool:
        """True if the model itself masks its features."""
        return False

    @property
    def size(self) -> SizeEstimate:
        """The size of the model, as far as the config determines it."""
        return SizeEstimate()

    def unused(self) -> dict[str, str]:
        """Returns the fields that nothing reads because of the other fields, each with the reason."""
        if self.init != "scratch":
            return {}
        names = ("tokenizer_name", "feature_extractor_name", "allow_pickle")
        return {
            "revision": "model.init is scratch, which takes nothing from the Hub",
            "dtype": "model.init is scratch, whose new weights are float32",
            **dict.fromkeys(names, "model.init is scratch, which begins with new weights and a new vocabulary"),
        }


class NewModelPart(ModelPart):
    """The recognizer of a family that can start from new weights, and has transformers' dropout and masking."""

    # Fields that are read only for new weights.
    sizes: ClassVar[tuple[str, ...]] = ("d_model", "encoder_layers", "attention_heads", "ffn_dim")

    vocab_size: Positive = Field(
        1000,
        ge=300,
        description="scratch, and CTC's bpe: maximum number of byte-level BPE tokens to learn from the text.",
    )
    d_model: Positive = Field(128, description="scratch: width of the layers.")
    encoder_layers: Positive = Field(2, description="scratch: number of encoder layers.")
    attention_heads: Positive = Field(
        4, description="scratch: number of attention heads of each layer; must divide d_model."
    )
    ffn_dim: Positive | None = Field(None, description="scratch: width of the feed-forward layers. null: 4 × d_model.")
    attention_dropout: Dropout | None = Field(None, description="Dropout of attention weights. null: the model's own.")
    activation_dropout: Dropout | None = Field(
        None, description="Dropout in feed-forward layers. null: the model's own."
    )
    apply_spec_augment: bool = Field(
        False,
        description="The model's own SpecAugment, whose masks depend on the batch. augment.time_masks and "
        "augment.frequency_masks mask each utterance independently; use one or the other.",
    )
    mask_time_prob: Dropout = Field(0.05, description="apply_spec_augment: approximate fraction of masked frames.")
    mask_time_length: Positive | None = Field(
        None,
        le=FEWEST_OUTPUTS,
        description="apply_spec_augment: frames of a mask. null: the model's own; 10 for a new model.",
    )
    mask_feature_prob: Dropout = Field(
        0.0, description="apply_spec_augment: approximate fraction of masked mel bins or hidden dimensions."
    )
    mask_feature_length: Positive | None = Field(
        None,
        description="apply_spec_augment: mel bins or hidden dimensions of a mask. null: as for mask_time_length.",
    )

    @rule
    def _sizes_fit(self) -> Self:
        if self.d_model % self.attention_heads:
            raise ValueError(f"d_model {self.d_model} must be a multiple of attention_heads {self.attention_heads}")
        width = self._mask_width
        if self.init == "scratch" and self.apply_spec_augment and (self.mask_feature_length or 0) > width:
            raise ValueError(f"mask_feature_length {self.mask_feature_length} is more than the model has ({width})")
        return self

    @property
    def masks_features(self) -> bool:
        return self.apply_spec_augment

    @property
    def masking(self) -> dict[str, Any]:
        """Values that replace SpecAugment settings in a model's own config."""
        names = ("mask_time_prob", "mask_time_length", "mask_feature_prob", "mask_feature_length")
        changes = {name: getattr(self, name) for name in names if self.apply_spec_augment}
        given = {name: value for name, value in changes.items() if value is not None}
        return {"apply_spec_augment": self.apply_spec_augment, **given}

    @property
    def learns_bpe(self) -> bool:
        return self.init == "scratch"

    @property
    def size(self) -> SizeEstimate:
        """The size of new weights: attention has four square matrices, a feed-forward layer has two of `ffn_dim`."""
        if self.init != "scratch":
            return SizeEstimate()
        layer = 4 * self.d_model**2 + 2 * self.d_model * (self.ffn_dim or 4 * self.d_model)
        return SizeEstimate(float(self.encoder_layers * layer + self.vocab_size * self.d_model), self.d_model)

    def unused(self) -> dict[str, str]:
        found = super().unused()
        if self.init == "pretrained":
            found |= dict.fromkeys(self.sizes, "model.init is pretrained, and the weights have their own sizes")
        if not self.learns_bpe:
            found["vocab_size"] = "no byte-level BPE is learned (model.init, model.vocabulary)"
        return found

    @property
    def _mask_width(self) -> int:
        return self.d_model
