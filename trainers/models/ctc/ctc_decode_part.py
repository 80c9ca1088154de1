"""Defines the decode part of a CTC model's config: how outputs become hypotheses. Imports no torch."""

from itertools import product
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

from pydantic import AfterValidator, BeforeValidator, Field

from trainers.config.parts.decode_part import DecodePart
from trainers.config.parts.part import Location, ModelLocation, Positive, PositiveFloat, rule

# For each field, those that have no effect unless it is set.
_FIELDS_OF = {"lm": ("lm_weight", "lm_unit"), "rescoring_model": ("rescoring_weight",)}


class Weights(NamedTuple):
    """Weights of a hypothesis's scores (natural logarithms) relative to the acoustic one; `word` is added per word."""

    lm: float = 0.0
    word: float = 0.0
    rescoring: float = 0.0

    @property
    def order(self) -> tuple[float, ...]:
        """Sort key, in which smaller weights come first."""
        return self.lm, self.rescoring, abs(self.word), self.word

    def to_json_dict(self) -> dict[str, float]:
        return {"lm_weight": self.lm, "word_score": self.word, "rescoring_weight": self.rescoring}


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, int | float | str) else value


def _each_once(values: list[float]) -> list[float]:
    if len(set(values)) < len(values):
        raise ValueError("names a value twice: leave one out")
    return values


Choices = Annotated[list[float], Field(min_length=1), BeforeValidator(_as_list), AfterValidator(_each_once)]
NotNegativeChoices = Annotated[
    list[Annotated[float, Field(ge=0)]], Field(min_length=1), BeforeValidator(_as_list), AfterValidator(_each_once)
]


class CtcDecodePart(DecodePart):
    """Decoding of a CTC model for final scores; scores during training use the best path.

    If a weight has several values, the best on the validation set, and on no other, is used.
    """

    decoder: ClassVar[str | None] = f"{__package__}.decoding.beam_decoder:BeamDecoder"
    extra: ClassVar[str | None] = "lm"
    files: ClassVar[tuple[str, ...]] = ("lexicon", "lm")
    models: ClassVar[tuple[str, ...]] = ("rescoring_model",)
    tuned: ClassVar[tuple[str, ...]] = ("lm_weight", "word_score", "rescoring_weight")
    greedy: ClassVar[str] = "best_path"

    method: Literal["greedy", "beam"] = Field(
        "greedy", description="greedy: the best path. beam: a beam search; needs Rayscribe's extra `lm`."
    )
    beam_size: Positive = Field(50, description="beam: hypotheses that are kept after each output of the model.")
    beam_size_token: Positive = Field(50, description="beam: how many of the best tokens of each output are tried.")
    beam_threshold: PositiveFloat = Field(
        25.0, description="beam: hypotheses that are this much worse than the best one are dropped. Natural logarithm."
    )
    lexicon: Location | None = Field(
        None,
        description="beam: a file of the words that hypotheses are made of, one a line, by itself or followed by its "
        "spelling in the model's tokens. null: the words of lm, or any text.",
    )
    lm: Location | None = Field(
        None, description="beam: an n-gram language model, ARPA or a KenLM binary, of lm_unit. null: none."
    )
    lm_unit: Literal["words", "tokens"] = Field(
        "words",
        description="Units of lm. words: for a KenLM binary, lexicon lists them. tokens: the model's tokens, as its "
        "vocabulary writes them; hypotheses may be any text.",
    )
    rescoring_model: ModelLocation | None = Field(
        None,
        description="beam: a causal language model that scores the hypotheses of the beam again, a Hub id or folder. "
        "null: none.",
    )
    lm_weight: NotNegativeChoices = Field(
        [0.0, 0.25, 0.5, 1.0, 1.5], description="lm: weight of its logarithm, or several to choose from."
    )
    word_score: Choices = Field(
        [-1.0, 0.0, 1.0, 2.0],
        description="lexicon, lm, rescoring_model: score added for each word, or several to choose from.",
    )
    rescoring_weight: NotNegativeChoices = Field(
        [0.0, 0.25, 0.5, 1.0], description="rescoring_model: weight of its logarithm, or several to choose from."
    )

    @rule
    def _fields_are_of_something(self) -> Self:
        fields = type(self).model_fields
        given = [name for name in fields if getattr(self, name) != fields[name].default]
        if self.method == "greedy" and given:
            raise ValueError(f"{', '.join(given)} set, but method is greedy: set method: beam, or leave them out")
        for switch, names in _FIELDS_OF.items():
            idle = [name for name in names if name in given and getattr(self, switch) is None]
            if idle:
                raise ValueError(f"{', '.join(idle)} set, but {switch} is null: set {switch}, or leave them out")
        if "word_score" in given and not self._counts_words:
            raise ValueError(
                "word_score set, but lexicon, lm and rescoring_model are null: set one of them, or leave it out"
            )
        if self.lm_unit == "tokens" and self.lexicon is not None:
            raise ValueError("lm_unit is tokens, and lexicon is of words: set lexicon: null, or give an lm of words")
        return self

    @property
    def settings(self) -> list[Weights]:
        """Every combination of weights to choose from; 0 for parts that are not configured."""
        if self.method == "greedy":
            return []
        return [
            Weights(*each)
            for each in product(
                self.lm_weight if self.lm is not None else [0.0],
                self.word_score if self._counts_words else [0.0],
                self.rescoring_weight if self.rescoring_model is not None else [0.0],
            )
        ]

    @property
    def beams(self) -> str | None:
        return "beam_size" if self.method == "beam" else None

    @property
    def _counts_words(self) -> bool:
        return any(each is not None for each in (self.lexicon, self.lm, self.rescoring_model))
