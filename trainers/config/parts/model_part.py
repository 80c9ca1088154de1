"""The config's model part: which recognizer is trained. See `schema`."""

from typing import Annotated, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from trainers.config.parts.part import Location, Part, Positive, trains
from trainers.config.storage_location import is_url

Dropout = Annotated[float, Field(ge=0, lt=1)]
CtcArchitecture = Literal["wav2vec2", "hubert", "wavlm", "wav2vec2-bert", "data2vec-audio"]
# Seconds of the longest input of any Whisper.
WHISPER_CONTEXT_S = 30
# Outputs of the shortest bucket, half a second at 20 ms, which a mask must not exceed.
FEWEST_OUTPUTS = 24
# Fields of a config that mean something to CTC models alone.
CTC_FIELDS = (
    "model.vocabulary",
    "model.vocabulary_file",
    "model.word_delimiter_token",
    "model.unk_token",
    "model.pad_token",
    "model.architecture",
    "model.hidden_dropout",
    "model.feat_proj_dropout",
    "model.final_dropout",
    "model.layerdrop",
    "model.freeze_feature_encoder",
    "model.feature_encoder_dim",
    "model.feat_extract_norm",
    "model.ctc_loss_reduction",
    "model.ctc_zero_infinity",
    "decode.method",
)
# And to models with a decoder alone.
DECODER_FIELDS = (
    "model.task",
    "model.decoder_layers",
    "model.max_label_tokens",
    "model.dropout",
    "model.num_mel_bins",
    "model.borrowed_language",
    "training.generation_num_beams",
    "training.full_context_fraction",
    "training.full_context_matching",
    "training.training_args.label_smoothing_factor",
)


class ModelPart(Part):
    """The recognizer: pretrained weights, or sizes of a new one."""

    init: Literal["pretrained", "scratch"] = Field("pretrained", description="Start from weights, or from sizes.")
    name_or_path: Location | None = Field(None, description="pretrained: Hub id, or folder. null: for scratch.")
    family: Literal["whisper", "ctc", "seq2seq"] | None = Field(
        None, description="Family of the model. null: that of the weights; whisper for scratch."
    )
    revision: str | None = Field(None, description="Git revision on the Hub. null: its newest.")
    language: str | None = Field(
        None,
        description="Language of the speech, in Whisper's words (english). null: an English-only Whisper; a CTC model "
        "needs none.",
    )
    borrowed_language: str | None = Field(
        None,
        description="A language whose token the model is given for `language`, which has none of its own: Swahili, to "
        "train Xhosa. null: its own token.",
    )
    task: Literal["transcribe", "translate"] = Field("transcribe", description="What the transcripts are.")
    max_context_s: Positive | None = Field(
        None,
        le=120,
        description="Longest input in whole seconds; clips are padded to the edge of their own length bucket. "
        "null: Whisper's clips are padded to the model's full 30 s, as the reference does; CTC models, which always "
        "have buckets, take up to 120 s. Opt-in for a pretrained Whisper: it must be adapted to short input before it "
        "helps.",
    )
    vocabulary: Literal["own", "characters", "bpe"] | None = Field(
        None,
        description="CTC: own: the pretrained tokenizer. characters, bpe: learned from the training text, with a new "
        "output layer. null: the pretrained tokenizer of weights that have an output layer for it, else characters.",
    )
    vocabulary_file: Location | None = Field(
        None, description="CTC: a vocab.json of characters and their ids, instead of learning them. null: none."
    )
    word_delimiter_token: str = Field("|", min_length=1, description="CTC: stands for the space between words.")
    unk_token: str = Field("[UNK]", min_length=1, description="CTC: stands for characters outside the vocabulary.")
    pad_token: str = Field("[PAD]", min_length=1, description="CTC: the blank.")
    architecture: CtcArchitecture = Field("wav2vec2-bert", description="scratch, CTC: model_type of the new model.")
    vocab_size: Positive = Field(
        1000, ge=300, description="scratch, and CTC's bpe: most byte-level BPE tokens learned from the text."
    )
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
    hidden_dropout: Dropout | None = Field(None, description="CTC: dropout of layers. null: the model's own.")
    feat_proj_dropout: Dropout | None = Field(
        None, description="CTC: dropout of the feature projection. null: the model's own."
    )
    final_dropout: Dropout | None = Field(
        None, description="CTC: dropout before the output layer. null: the model's own."
    )
    layerdrop: Dropout | None = Field(
        None,
        description="CTC: how often a layer is skipped in training. null: 0. With weights that "
        "are sharded (ZeRO-3, FSDP2) it can only be 0, as ranks must agree on it.",
    )
    apply_spec_augment: bool = Field(
        False,
        description="The model's own SpecAugment, drawn for each forward pass. augment.time_masks and "
        "augment.frequency_masks, which it excludes, are drawn for each utterance, whatever the batch.",
    )
    mask_time_prob: Dropout = Field(0.05, description="apply_spec_augment: about this fraction of frames is masked.")
    mask_time_length: Positive | None = Field(
        None,
        le=FEWEST_OUTPUTS,
        description="apply_spec_augment: frames of a mask. null: the model's own; 10 for new.",
    )
    mask_feature_prob: Dropout = Field(
        0.0, description="apply_spec_augment: about this fraction of mel bins, or hidden dimensions, is masked."
    )
    mask_feature_length: Positive | None = Field(
        None,
        description="apply_spec_augment: mel bins, or hidden dimensions, of a mask. null: the model's own; 10 for new.",
    )
    freeze_feature_encoder: bool | None = Field(
        None,
        description="CTC: do not train the convolutions over samples. null: not those of pretrained weights.",
    )
    feature_encoder_dim: Positive = Field(64, description="scratch, CTC: channels of the convolutions over samples.")
    feat_extract_norm: Literal["group", "layer"] = Field(
        "layer",
        description="scratch, CTC: norm of these convolutions; a group norm sees padding, and is scored without.",
    )
    ctc_loss_reduction: Literal["mean", "sum"] = Field(
        "mean",
        description="CTC: the loss of a global batch. mean: each utterance's loss by its number of labels, averaged. "
        "sum: the sum of utterances' losses, by the number of all labels.",
    )
    ctc_zero_infinity: bool = Field(
        False, description="CTC: a loss that is infinite counts as 0. Such clips are left out of training anyway."
    )
    attn_implementation: Literal["eager", "sdpa", "flash_attention_2"] | None = Field(
        None, description="How attention is computed, a transformers name. null: the library's choice."
    )

    @field_validator("max_context_s")
    @classmethod
    def _fits_whisper_s_context(cls, max_context_s: int | None, info: ValidationInfo) -> int | None:
        if info.data.get("family") in (None, "whisper") and (max_context_s or 0) > WHISPER_CONTEXT_S:
            raise ValueError(
                f"is more than the {WHISPER_CONTEXT_S} s of a Whisper; for another model say which model.family it has"
            )
        return max_context_s

    @model_validator(mode="after")
    def _init_fits(self, info: ValidationInfo) -> Self:
        if self.init == "pretrained" and self.name_or_path is None and trains(info):
            raise ValueError("name_or_path is missing: name a Hub id or folder, or set model.init: scratch")
        if self.init == "scratch" and self.name_or_path is not None:
            raise ValueError(f"name_or_path is {self.name_or_path} but init is scratch: set model.init: pretrained")
        if self.init == "scratch" and self.family != "ctc" and self.language is None and trains(info):
            raise ValueError("language is missing: a scratch model needs one, e.g. model.language: English")
        if self.init == "scratch" and self.family == "seq2seq":
            raise ValueError("init is scratch, but the family seq2seq begins with weights: set model.init: pretrained")
        if self.init == "scratch" and self.vocabulary == "own":
            raise ValueError("vocabulary is own but init is scratch: a new model learns one (characters, bpe)")
        if self.borrowed_language is not None and self.language is None:
            raise ValueError(f"borrowed_language is {self.borrowed_language}: say for which language")
        if self.d_model % self.attention_heads:
            raise ValueError(f"d_model {self.d_model} must be a multiple of attention_heads {self.attention_heads}")
        return self

    @model_validator(mode="after")
    def _ctc_fits(self) -> Self:
        if self.vocabulary_file is not None and is_url(self.vocabulary_file):
            raise ValueError(f"vocabulary_file is {self.vocabulary_file}: copy it to a disk, and give its path there")
        if self.vocabulary_file is not None and self.vocabulary in ("own", "bpe"):
            raise ValueError(f"vocabulary is {self.vocabulary}, and vocabulary_file names another: keep one of them")
        if len({self.word_delimiter_token, self.unk_token, self.pad_token}) < 3:
            raise ValueError("word_delimiter_token, unk_token and pad_token must differ: each has a meaning of its own")
        if self.init == "scratch" and self.family == "ctc" and self.architecture == "wav2vec2-bert":
            for name in ("feature_encoder_dim", "feat_extract_norm", "freeze_feature_encoder"):
                value = getattr(self, name)
                if value is not False and value != type(self).model_fields[name].default:
                    raise ValueError(f"{name} is {value}, but wav2vec2-bert has no layers over samples: remove it")
        width = self.d_model if self.family == "ctc" else self.num_mel_bins
        if self.init == "scratch" and self.apply_spec_augment and (self.mask_feature_length or 0) > width:
            raise ValueError(f"mask_feature_length {self.mask_feature_length} is more than the {width} that there are")
        return self

    @property
    def token_language(self) -> str | None:
        """The language whose token the model is given."""
        return self.borrowed_language or self.language
