"""Conditions under which a checkpoint is refused: `silence.words_per_minute: "> base + 2"`. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

VALIDATION = "validation"
# Sets of sounds without speech, see `data.sounds`.
SOUND_SETS = ("silence", "noise")
# Utterances of the validation set whose speakers the training set lacks.
NEW_SPEAKERS = "new_speakers"
# Names that no set of evaluate.also may have.
BUILT_IN_SETS = ("train", VALIDATION, "test", NEW_SPEAKERS, *SOUND_SETS, "decoding")
# Ends the names of scores at the model's full context, next to those at a shorter one.
FULL_CONTEXT = "_full_context"
# All are better the smaller they are.
ERROR_RATES, SOUND_RATES = ("wer", "cer", "ser"), ("words_per_minute", "characters_per_minute")
_NUMBER = r"\d+(?:\.\d+)?"
_CONDITION = re.compile(rf"> *(?:(?P<base>base)(?: *(?P<sign>[+-]) *(?P<offset>{_NUMBER}))?|(?P<limit>{_NUMBER}))")


def gated_rates(name: str) -> tuple[str, ...]:
    """Returns the rates that a condition may limit, of the set of this name."""
    return SOUND_RATES if name in SOUND_SETS else ERROR_RATES


@dataclass(frozen=True)
class Condition:
    """A limit of one rate, above which a checkpoint is refused.

    Attributes:
        of_base: True if `limit` is added to the rate of the weights that the run begins with.
    """

    set: str
    rate: str
    limit: float
    of_base: bool

    @classmethod
    def parse(cls, name: str, text: str) -> Self:
        """Parses an entry of `checkpoint.refuse_if`; raises ValueError, with the fix, if it is not valid."""
        of, _, rate = name.partition(".")
        if rate not in gated_rates(of):
            known = ", ".join(f"{of or VALIDATION}.{rate}" for rate in gated_rates(of))
            raise ValueError(f"{name} is not a rate that refuses checkpoints: give one of {known}")
        found = _CONDITION.fullmatch(text.strip())
        if found is None:
            raise ValueError(f"{name}: {text!r} is not a condition: give one like '> base + 1.0', '> base' or '> 30'")
        if found["base"] is None:
            return cls(of, rate, float(found["limit"]), of_base=False)
        offset = float(found["offset"] or 0)
        return cls(of, rate, -offset if found["sign"] == "-" else offset, of_base=True)

    @property
    def metric(self) -> str:
        """Name of the rate among the metrics of a validation."""
        return f"eval_{self.rate}" if self.set == VALIDATION else f"eval_{self.set}_{self.rate}"

    def refusal(self, metrics: Mapping[str, float], base: Mapping[str, float]) -> str | None:
        """Returns why metrics of a validation are refused; None if they are not, or do not have the rate.

        `base` has the rates of the weights that the run begins with, under the same names.
        """
        rate = metrics.get(self.metric)
        limit = self.limit + (base[self.metric] if self.of_base else 0)
        if rate is None or rate <= limit:
            return None
        offset = f" {self.limit:+.2f}" if self.limit else ""
        of_base = f" (base {base[self.metric]:.2f}{offset})" if self.of_base else ""
        return f"{self.set}.{self.rate} is {rate:.2f}, more than {limit:.2f}{of_base}"
