"""Defines the model part of a CTC model's config. Imports no torch."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, Field

from trainers.config.parts.decode_part import DecodePart
from trainers.config.parts.model_part import Dropout, NewModelPart
from trainers.config.parts.part import Positive, refuse_url, rule
from trainers.models.ctc.ctc_decode_part import CtcDecodePart

# No URL, since it is read with the recipe.
VocabularyFile = Annotated[str, AfterValidator(lambda file: refuse_url(file, "a file on a disk: copy it there"))]
CtcArchitecture = Literal["wav2vec2", "hubert", "wavlm", "wav2vec2-bert", "data2vec-audio"]


class CtcPart(NewModelPart):
    """A CTC model: pretrained weights, or the sizes of a new one."""

    implementation: ClassVar[str] = f"{__package__}.ctc_family:CtcFamily"
    decode_part: ClassVar[type[DecodePart]] = CtcDecodePart
    unsupported: ClassVar[tuple[str, ...]] = (
        "training.full_context_fraction",
        "training.training_args.label_smoothing_factor",
    )
    files: ClassVar[tuple[str, ...]] = ("vocabulary_file",)
    drawn_by_rank: ClassVar[tuple[str, ...]] = ("layerdrop",)
    sizes: ClassVar[tuple[str, ...]] = (
        *NewModelPart.sizes,
        "architecture",
        "feature_encoder_dim",
        "feat_extract_norm",
    )

    vocabulary: Literal["own", "characters", "bpe"] | None = Field(
        None,
        description="own: the pretrained tokenizer. characters, bpe: learned from the training text, with a new output "
        "layer. null: the pretrained tokenizer of weights that have an output layer for it, else characters.",
    )
    vocabulary_file: VocabularyFile | None = Field(
        None, description="A vocab.json of characters and their ids, instead of learning them. null: none."
    )
    word_delimiter_token: str = Field("|", min_length=1, description="Stands for the space between words.")
    unk_token: str = Field("[UNK]", min_length=1, description="Stands for characters outside the vocabulary.")
    pad_token: str = Field("[PAD]", min_length=1, description="The blank.")
    architecture: CtcArchitecture = Field("wav2vec2-bert", description="scratch: model_type of the new model.")
    hidden_dropout: Dropout | None = Field(None, description="Dropout of layers. null: the model's own.")
    feat_proj_dropout: Dropout | None = Field(
        None, description="Dropout of the feature projection. null: the model's own."
    )
    final_dropout: Dropout | None = Field(None, description="Dropout before the output layer. null: the model's own.")
    layerdrop: Dropout | None = Field(
        None,
        description="Probability that a layer is skipped in training. null: 0. With sharded "
        "weights (ZeRO-3, FSDP2) it must be 0, since ranks must run the same layers.",
    )
    freeze_feature_encoder: bool | None = Field(
        None, description="Do not train the convolutions over samples. null: not those of pretrained weights."
    )
    feature_encoder_dim: Positive = Field(64, description="scratch: channels of the convolutions over samples.")
    feat_extract_norm: Literal["group", "layer"] = Field(
        "layer",
        description="scratch: norm of these convolutions; with group, outputs depend on padding, so scoring has none.",
    )
    ctc_loss_reduction: Literal["mean", "sum"] = Field(
        "mean",
        description="The loss of a global batch. mean: each utterance's loss by its number of labels, averaged. "
        "sum: the sum of utterances' losses, by the number of all labels.",
    )
    ctc_zero_infinity: bool = Field(
        False, description="A loss that is infinite counts as 0. Such clips are left out of training anyway."
    )

    @rule
    def _vocabulary_fits(self) -> Self:
        if self.init == "scratch" and self.vocabulary == "own":
            raise ValueError("vocabulary is own but init is scratch: a new model learns one (characters, bpe)")
        if self.vocabulary_file is not None and self.vocabulary in ("own", "bpe"):
            raise ValueError(f"vocabulary is {self.vocabulary}, and vocabulary_file names another: keep one of them")
        if self.tokenizer_name is not None and (self.vocabulary_file or self.vocabulary in ("characters", "bpe")):
            other = "vocabulary_file" if self.vocabulary_file else f"vocabulary {self.vocabulary}"
            raise ValueError(f"tokenizer_name has a vocabulary, and {other} requests another: keep one of them")
        if len({self.word_delimiter_token, self.unk_token, self.pad_token}) < 3:
            raise ValueError("word_delimiter_token, unk_token and pad_token must differ: each has a meaning of its own")
        return self

    @rule
    def _layers_fit(self) -> Self:
        if self.init == "scratch" and self.architecture == "wav2vec2-bert":
            for name in ("feature_encoder_dim", "feat_extract_norm", "freeze_feature_encoder"):
                value = getattr(self, name)
                if value is not False and value != type(self).model_fields[name].default:
                    raise ValueError(f"{name} is {value}, but wav2vec2-bert has no layers over samples: remove it")
        return self

    @property
    def learns_bpe(self) -> bool:
        return self.vocabulary == "bpe"

    def unused(self) -> dict[str, str]:
        found = super().unused()
        if self.vocabulary == "own":
            tokens = ("word_delimiter_token", "unk_token", "pad_token")
            found |= dict.fromkeys(tokens, "model.vocabulary is own, whose tokenizer has its own tokens")
        if self.vocabulary == "bpe":
            found["word_delimiter_token"] = "model.vocabulary is bpe, which writes spaces"
        if self.init == "scratch" and self.architecture == "data2vec-audio":
            found["feat_extract_norm"] = "data2vec-audio has layer norms only"
        return found
