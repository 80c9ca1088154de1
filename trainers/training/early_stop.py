"""Ends training once the score that ranks checkpoints has not improved in a number of validations."""

import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from transformers import TrainerCallback

from trainers.config.wording import counted
from trainers.distributed.session import Session
from trainers.run_folder.checkpoints import REFUSED


class Patience:
    """Counts the validations since the best one. A score that equals the best, or is not finite, is no improvement.

    `validations` is the number after which it is exhausted; None: never. `scores` are the earlier ones of the run.
    """

    def __init__(self, validations: int | None, order: Literal["min", "max"], scores: Iterable[float] = ()):
        self._validations, self._sign = validations, 1 if order == "min" else -1
        self._best = math.inf
        self.since_best = 0
        for score in scores:
            self.add(score)

    def add(self, score: float) -> None:
        is_better = self._sign * score < self._best
        self.since_best = 0 if is_better else self.since_best + 1
        if is_better:
            self._best = self._sign * score

    @property
    def best(self) -> float:
        """The best score; not finite if there was none."""
        return self._sign * self._best

    @property
    def is_exhausted(self) -> bool:
        return self._validations is not None and self.since_best >= self._validations


def ranked_score(metrics: Mapping[str, Any], attribute: str) -> float:
    """Returns the ranking score of a validation; not a number for a checkpoint that is refused."""
    return math.nan if metrics.get(REFUSED) else float(metrics[attribute])


class EarlyStop(TrainerCallback):
    """Ends training with a checkpoint, on all ranks alike, when the patience is exhausted."""

    def __init__(self, session: Session, patience: Patience, attribute: str):
        """`attribute` is the name of the ranking score among the metrics of a validation."""
        self._session, self.patience, self._attribute = session, patience, attribute

    def scored(self, metrics: dict[str, float]) -> None:
        self.patience.add(ranked_score(metrics, self._attribute))

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        metrics = kwargs["metrics"]
        # Empty if a stop request has interrupted the validation.
        if not metrics:
            return
        self.scored(metrics)
        if self.patience.is_exhausted and state.global_step < state.max_steps:
            control.should_save = control.should_training_stop = True
            count = counted(self.patience.since_best, "validation")
            best = f"; the best was {self.patience.best:.2f}" if math.isfinite(self.patience.best) else ""
            self._session.show_from_main(
                f"train: ends early at step {state.global_step}: {self._attribute} has not improved in {count} "
                f"(training.patience){best}"
            )
