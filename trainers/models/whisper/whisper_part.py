"""Defines the model part of a Whisper's config. Imports no torch."""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import Field, ValidationInfo, field_validator

from trainers.config.parts.decode_part import DecodePart, GenerationPart
from trainers.config.parts.model_part import Dropout, NewModelPart, SizeEstimate
from trainers.config.parts.part import Positive, rule, trains
from trainers.config.parts.strategy_part import StrategyPart
from trainers.config.parts.training_part import AdaptPart, TrainingPart
from trainers.errors import ConfigError
from trainers.models.language_names import no_token, whisper_code

# Seconds of the longest input of any Whisper.
CONTEXT_S = 30
# Numbers of weights of the released models, from the table in OpenAI's model card.
RELEASED = {
    "tiny": 39e6,
    "tiny.en": 39e6,
    "base": 74e6,
    "base.en": 74e6,
    "small": 244e6,
    "small.en": 244e6,
    "medium": 769e6,
    "medium.en": 769e6,
    "large": 1550e6,
    "large-v2": 1550e6,
    "large-v3": 1550e6,
    "large-v3-turbo": 809e6,
}
# The smallest width of the released models, that of tiny.
LEAST_WIDTH = 384
MATCHED_FRACTION = 0.1


class WhisperPart(NewModelPart):
    """A Whisper: released weights, or the sizes of a new one."""

    implementation: ClassVar[str] = f"{__package__}.whisper_family:WhisperFamily"
    decode_part: ClassVar[type[DecodePart]] = GenerationPart
    released: ClassVar[Mapping[str, str]] = {size: f"openai/whisper-{size}" for size in RELEASED}
    sizes: ClassVar[tuple[str, ...]] = (*NewModelPart.sizes, "decoder_layers", "num_mel_bins", "max_label_tokens")

    borrowed_language: str | None = Field(
        None,
        description="A language whose token the model uses for `language`, which has no token of its own: Swahili, to "
        "train Xhosa. null: the token of `language`.",
    )
    task: Literal["transcribe", "translate"] = Field(
        "transcribe", description="transcribe: transcripts in the language of the speech. translate: in English."
    )
    decoder_layers: Positive = Field(1, description="scratch: decoder layers.")
    num_mel_bins: Positive = Field(80, description="scratch: mel bins.")
    max_label_tokens: int = Field(448, gt=0, le=448, description="scratch: maximum label tokens of an utterance.")
    dropout: Dropout | None = Field(None, description="Dropout. null: the model's own; 0 for scratch.")
    full_context_matching: float = Field(
        0.0,
        ge=0,
        description="Weight of a term of the loss that keeps pretrained weights with a shorter max_context_s near what "
        "they were at the full context: the mean squared difference between the encoder's last hidden states and those "
        "of the weights that the run began with. 0: off.",
    )
    full_context_matching_fraction: float = Field(
        MATCHED_FRACTION,
        gt=0,
        le=1,
        description="Fraction of each step's utterances, at least one, that the encoder also gets at the full "
        "context, for full_context_matching.",
    )

    @field_validator("max_context_s")
    @classmethod
    def _fits_the_context(cls, max_context_s: int | None) -> int | None:
        if (max_context_s or 0) > CONTEXT_S:
            raise ValueError(f"is more than the {CONTEXT_S} s of a Whisper; for another model, set model.family")
        return max_context_s

    @rule
    def _language_fits(self, info: ValidationInfo) -> Self:
        if self.init == "scratch" and self.language is None and trains(info):
            raise ValueError("language is missing: a scratch model needs one, e.g. model.language: English")
        if self.borrowed_language is not None and self.language is None:
            raise ValueError(f"borrowed_language is {self.borrowed_language}, but language is null: set language")
        return self

    def misfits(self, adapt: AdaptPart, training: TrainingPart, strategy: StrategyPart) -> Iterator[str]:
        field, weight = "model.full_context_matching", self.full_context_matching
        fraction = self.full_context_matching_fraction
        if not weight and fraction != MATCHED_FRACTION:
            yield f"{field}_fraction is {fraction}, but {field} is 0: give it a weight, or leave the fraction out"
        keeps_encoder = adapt.method in ("freeze_encoder", "decoder_only")
        problems = {
            "model.init is scratch, and new weights have learned nothing at 30 s to keep": self.init == "scratch",
            "model.max_context_s is null, so that it is trained at its full context anyway": self.max_context_s is None,
            f"adapt.method {adapt.method} keeps the encoder as it is, bit for bit": keeps_encoder,
            f"strategy.name is {strategy.name}, and the original is a full copy on each worker": strategy.is_sharded,
            "training.max_batch_duration_s does not count what is padded to the full context, as "
            "training.global_batch_size does": training.max_batch_duration_s is not None,
        }
        found = "; and ".join(problem for problem, is_there in problems.items() if is_there)
        if weight and found:
            yield f"{field} is {weight}, but {found}: change that, or set {field}: 0"

    @property
    def is_regularized(self) -> bool:
        return self.full_context_matching > 0

    @property
    def token_language(self) -> str | None:
        return self.borrowed_language or self.language

    def refuse_early(self) -> None:
        if self.token_language is not None and self._is_surely_whisper:
            language_code(self.token_language)

    @property
    def _is_surely_whisper(self) -> bool:
        """True if the model is a Whisper; False also if its family is not known yet."""
        if self.init == "scratch" or self.family == "whisper" or self.name_or_path in self.released.values():
            return True
        with suppress(OSError, ValueError):
            content = json.loads((Path(str(self.name_or_path)) / "config.json").read_bytes())
            return isinstance(content, dict) and content.get("model_type") == "whisper"
        return False

    @property
    def size(self) -> SizeEstimate:
        """The size of released weights, by name, or of new ones."""
        if self.init == "pretrained":
            _, prefix, size = str(self.name_or_path).rstrip("/").rpartition("whisper-")
            return SizeEstimate(RELEASED.get(size, 0.0) if prefix else 0.0, LEAST_WIDTH)
        # A decoder layer has two attentions.
        layer = 8 * self.d_model**2 + 2 * self.d_model * (self.ffn_dim or 4 * self.d_model)
        encoder = super().size
        return encoder._replace(weights=encoder.weights + self.decoder_layers * layer)

    @property
    def _mask_width(self) -> int:
        return self.num_mel_bins


def language_code(language: str) -> str:
    """Returns Whisper's code of a language given by name or code, see `code_or_name`: `Serbian`, `sr-RS` → `sr`.

    Raises ConfigError if Whisper has no token for the language.
    """
    if (code := whisper_code(language)) is None:
        raise ConfigError(
            f"model.language: {no_token(language)} Or set model.borrowed_language to a language that has one"
        )
    return code
