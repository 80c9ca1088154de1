"""Trains a few dozen steps with a rising learning rate, and suggests a rate from the losses.

Smith 2017, "Cyclical Learning Rates for Training Neural Networks", section 3.3 (the range test). As in fastai's
`lr_find`, the suggestion is a tenth of the rate with the lowest smoothed loss.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from transformers import TrainerCallback

STEPS = 60
LOWEST, HIGHEST = 1e-7, 1e-1
# Weight of the new loss in the exponential moving average.
_SMOOTHING = 0.3
# Losses above this multiple of the lowest one end the sweep.
_DIVERGED = 2.0


def rates() -> list[float]:
    """Returns the learning rate of each step: STEPS rates in equal ratios from LOWEST to HIGHEST."""
    return [float(rate) for rate in np.geomspace(LOWEST, HIGHEST, STEPS)]


def smoothed(losses: Sequence[float]) -> list[float]:
    """Returns the exponential moving average of the losses, without bias towards the first."""
    result, mean = [], 0.0
    for number, loss in enumerate(losses, start=1):
        mean = _SMOOTHING * loss + (1 - _SMOOTHING) * mean
        result.append(mean / (1 - (1 - _SMOOTHING) ** number))
    return result


@dataclass(frozen=True)
class Suggestion:
    """The result of a sweep.

    Attributes:
        rate: The suggested learning rate, rounded to two digits.
        lowest: The rate with the lowest smoothed loss.
        diverges: The first rate at which the loss was above twice the lowest, or not finite; None if there was none.
    """

    rate: float
    lowest: float
    diverges: float | None

    @classmethod
    def of(cls, losses: Sequence[float]) -> "Suggestion | None":
        """Returns the suggestion for the losses of the first steps of `rates`; None if the loss never fell."""
        finite = [loss for loss in losses if math.isfinite(loss)]
        curve, all_rates = smoothed(finite), rates()
        if len(curve) < 2:
            return None
        at = int(np.argmin(curve))
        if at == 0:
            return None
        ended = len(losses) < STEPS or len(finite) < len(losses)
        # That of the last loss, after which the sweep ended.
        diverges = all_rates[len(losses) - 1] if ended else None
        return cls(float(f"{all_rates[at] / 10:.1e}"), all_rates[at], diverges)


class Sweep(TrainerCallback):
    """Sets the rate of each step, records its loss, and raises `Done` after the last one or when the loss explodes."""

    class Done(Exception):
        """The sweep has ended."""

    def __init__(self) -> None:
        self._rates = rates()
        self.losses: list[float] = []

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        for group in kwargs["optimizer"].param_groups:
            group["lr"] = self._rates[state.global_step]

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if "loss" not in kwargs["logs"]:
            return
        self.losses.append(float(kwargs["logs"]["loss"]))
        curve = smoothed(self.losses)
        if len(self.losses) == STEPS or curve[-1] > _DIVERGED * min(curve):
            raise self.Done
