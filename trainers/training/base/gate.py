"""Refuses checkpoints by the conditions of checkpoint.refuse_if, at each validation."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from trainers.config.parts.conditions import ERROR_RATES, SOUND_SETS, VALIDATION, Condition, gated_rates
from trainers.models.recognizer import Recognizer
from trainers.run_folder.checkpoints import REFUSED
from trainers.run_folder.journal import Base
from trainers.scoring.ranking import greedy_score
from trainers.scoring.scorer import CutShort, Scorer, SplitScore, never
from trainers.training.callbacks import metrics_of, validation_metrics
from trainers.training.planning import cache_bytes, for_other_sets, scored_clips, scoring_options
from trainers.training.scoring_worker import count_in_sounds
from trainers.training.worker_context import WorkerContext

FULL_CONTEXT = "eval_full_context_"


@dataclass(frozen=True)
class Gate:
    """The conditions of a run, which scores the sets that they name.

    Attributes:
        base: The scores of the weights that the run begins with; None if they were not scored.
    """

    context: WorkerContext
    base: Base | None

    @classmethod
    def of(cls, context: WorkerContext) -> "Gate":
        """Returns the gate of a run that has begun; every rank calls this."""
        return cls(context, context.session.broadcast(lambda: context.writer.check().base, "reading the base's scores"))

    @property
    def _conditions(self) -> list[Condition]:
        return self.context.config.checkpoint.conditions

    def judged(self, result: SplitScore, recognizer: Recognizer, what: str, cut_short: CutShort = never) -> SplitScore:
        """Returns a validation with the rates of guards, and `refused` if a condition holds. Every rank calls this.

        `what` names the weights that were scored in the message of a refusal. Raises CutShortError, see `Scorer.score`.
        """
        if not self._conditions:
            return result
        further: dict[str, float] = {}
        for name in sorted({each.set for each in self._conditions} - {VALIDATION}):
            rates = self._count if name in SOUND_SETS else self._score
            totals = rates(name, recognizer, cut_short)
            further |= {f"{name}_{rate}": totals[rate] for rate in gated_rates(name)}
        result = replace(result, metrics={**result.metrics, **further})
        reasons = self.reasons(validation_metrics(result))
        if not reasons:
            return result
        self.context.session.show_from_main(f"{what} is refused: {'; '.join(reasons)}")
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
        names = {each.set for each in self._conditions} - {VALIDATION}
        # Validations are scored without the search of final scores.
        for name in names & scores.keys():
            _, greedy = greedy_score(scores[name])
            rates |= {f"eval_{name}_{rate}": greedy[rate] for rate in gated_rates(name)}
        return rates

    def _count(self, name: str, recognizer: Recognizer, cut_short: CutShort) -> Mapping[str, Any]:
        session = self.context.session
        return count_in_sounds(name, self.context.config, session, recognizer, cut_short=cut_short)[0]

    def _score(self, name: str, recognizer: Recognizer, cut_short: CutShort) -> Mapping[str, Any]:
        config, limits = for_other_sets(self.context.config), recognizer.limits
        clips = scored_clips(config, self.context.task.sets[name], recognizer, name)
        scorer = Scorer(clips, recognizer, self.context.session, cache_bytes=cache_bytes(config))
        score = scorer.score(scoring_options(config, limits), f"score {name}", cut_short=cut_short)
        return score.to_json_dict()


def _at_own_context(metrics: Mapping[str, float], *, has_full: bool) -> dict[str, float]:
    """Returns metrics whose error rates are those at the model's own context, if they were scored at it."""
    own = {name: metrics.get(f"{FULL_CONTEXT}{name}") if has_full else None for name in ERROR_RATES}
    return {**metrics, **{f"eval_{name}": rate for name, rate in own.items() if rate is not None}}
