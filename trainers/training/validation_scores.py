"""Scores the validation set during training, and decides whether the checkpoint of that step may be the best."""

from dataclasses import dataclass
from typing import Self

from trainers.config.parts.conditions import VALIDATION
from trainers.models.recognizer import Recognizer
from trainers.scoring.recipe_metrics import RecipeMetrics
from trainers.scoring.scorer import CutShort, Scorer, ScoringOptions, never, show_rates
from trainers.training.base.gate import Gate
from trainers.training.callbacks import KeepCheckpoints, ProgressReport, validation_metrics
from trainers.training.planning import cache_bytes, scored_clips, validation_options
from trainers.training.worker_context import WorkerContext


def validation_scorer(
    context: WorkerContext, recognizer: Recognizer, *, full_context: bool
) -> tuple[Scorer, ScoringOptions]:
    """Returns the scorer of a recognizer on the validation set, and its options, see `validation_options`."""
    config = context.config
    clips = scored_clips(config, context.task.sets[VALIDATION], recognizer, VALIDATION)
    metrics = RecipeMetrics(config.scoring.metrics)
    scorer = Scorer(clips, recognizer, context.session, cache_bytes=cache_bytes(config), metrics=metrics)
    return scorer, validation_options(config, recognizer.limits, full_context=full_context)


@dataclass(frozen=True)
class Validation:
    """Scores one recognizer on the validation set; passes the scores to checkpoints, the engine and the gauges."""

    context: WorkerContext
    recognizer: Recognizer
    scorer: Scorer
    options: ScoringOptions
    gate: Gate
    progress: ProgressReport
    keeper: KeepCheckpoints

    @classmethod
    def of(
        cls,
        context: WorkerContext,
        recognizer: Recognizer,
        gate: Gate,
        progress: ProgressReport,
        keeper: KeepCheckpoints,
    ) -> Self:
        scored = validation_scorer(context, recognizer, full_context=context.config.training.full_context_eval)
        return cls(context, recognizer, *scored, gate, progress, keeper)

    def score(self, step: int, cut_short: CutShort = never) -> dict[str, float]:
        """Returns the metrics after a step; raises as `Scorer.score`. All ranks call this together."""
        session = self.context.session
        self.progress.scoring()
        result = self.scorer.score(self.options, f"score {VALIDATION}", cut_short=cut_short)
        result = self.gate.judged(result, self.recognizer, f"the checkpoint of step {step}", cut_short)
        self.keeper.scored(step, result)
        metrics = validation_metrics(result)
        session.report({"step": step, **metrics})
        show_rates(result, VALIDATION, session)
        return metrics
