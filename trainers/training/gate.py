"""Refuses checkpoints by the conditions of checkpoint.refuse_if, at each validation."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from trainers.config.parts.gate import RATES, VALIDATION, Condition
from trainers.config.schema import TrainConfig
from trainers.distributed.session import Session
from trainers.models.recognizer import Recognizer
from trainers.run_folder.checkpoints import REFUSED
from trainers.run_folder.journal import Base
from trainers.scoring.invented_words import count_invented_words
from trainers.scoring.scorer import SplitScore
from trainers.scoring.sounds import SOUNDS
from trainers.training.callbacks import metrics_of, validation_metrics
from trainers.training.planning import has_full_context, scoring_options

FULL_CONTEXT = "eval_full_context_"


@dataclass(frozen=True)
class Gate:
    """The conditions of a run, and what is scored for them next to the validation set."""

    config: TrainConfig
    base: Base | None
    session: Session

    @property
    def _conditions(self) -> list[Condition]:
        return self.config.checkpoint.conditions

    def judged(self, result: SplitScore, recognizer: Recognizer, what: str) -> SplitScore:
        """Returns a validation with the rates of guards, and `refused` if a condition holds. Every rank calls this.

        `what` names the weights that were scored in the message of a refusal.
        """
        if not self._conditions:
            return result
        further: dict[str, float] = {}
        for name in sorted({each.set for each in self._conditions if each.is_of_guard}):
            totals = self._count(name, recognizer)
            further |= {f"{name}_{rate}": totals[rate] for rate in RATES[name]}
        result = replace(result, metrics={**result.metrics, **further})
        reasons = self.reasons(validation_metrics(result))
        if not reasons:
            return result
        self.session.show_from_main(f"{what} is refused: {'; '.join(reasons)}")
        return replace(result, metrics={**result.metrics, REFUSED.removeprefix("eval_"): 1.0})

    def reasons(self, metrics: Mapping[str, float]) -> list[str]:
        """Returns why the metrics of a validation are refused; empty if they are not."""
        has_full = f"{FULL_CONTEXT}wer" in metrics
        rates, base = _at_own_context(metrics, has_full=has_full), self._base_rates(has_full=has_full)
        found = [each.refusal(rates, base) for each in self._conditions]
        return [reason for reason in found if reason is not None]

    def _base_rates(self, *, has_full: bool) -> Mapping[str, float]:
        scores = self.base.scores if self.base is not None else {}
        rates = _at_own_context(metrics_of(scores.get(VALIDATION, {})), has_full=has_full)
        of_guards = {
            f"eval_{name}_{rate}": totals[rate]
            for name, totals in scores.items()
            if name in SOUNDS
            for rate in RATES[name]
        }
        return {**rates, **of_guards}

    def _count(self, name: str, recognizer: Recognizer) -> Mapping[str, Any]:
        limits = recognizer.limits
        options = scoring_options(self.config, limits, full_context=has_full_context(self.config, limits))
        totals, _ = count_invented_words(
            SOUNDS[name](),
            recognizer,
            self.session,
            options,
            language=self.config.model.language,
            what=f"score {name}",
        )
        return totals


def _at_own_context(metrics: Mapping[str, float], *, has_full: bool) -> dict[str, float]:
    """Returns metrics whose error rates are those at the model's own context, if they were scored at it."""
    own = {name: metrics.get(f"{FULL_CONTEXT}{name}") if has_full else None for name in RATES[VALIDATION]}
    return {**metrics, **{f"eval_{name}": rate for name, rate in own.items() if rate is not None}}
