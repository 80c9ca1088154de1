"""Scores the validation set during training, and publishes the score."""

from dataclasses import dataclass
from typing import Any

from trainers.distributed.coordinated_stop import LastStep
from trainers.distributed.session import Session
from trainers.scoring.scorer import CutShortError, Scorer, ScoringOptions, SplitScore, show_rates
from trainers.training.callbacks import VALIDATION, KeepCheckpoints, ProgressReport, validation_metrics


@dataclass(frozen=True)
class Validation:
    """Scores the validation set over all ranks."""

    session: Session
    scorer: Scorer
    options: ScoringOptions
    arguments: Any
    stop: LastStep
    progress: ProgressReport
    keeper: KeepCheckpoints

    def score(self, step: int) -> dict[str, float] | None:
        """The score after a step; None where a request to stop came between. All ranks call it together."""
        self.progress.scoring()
        try:
            result = self.scorer.score(self.options, cut_short=lambda: self.stop.skips_evaluation(self.arguments))
        except CutShortError:
            self.stop.end_at(step)
            return None
        return publish_validation(result, step, self.session, self.keeper)


def publish_validation(result: SplitScore, step: int, session: Session, keeper: KeepCheckpoints) -> dict[str, float]:
    """Gives a score to the checkpoint of its step, and to the engine; returns it as metrics."""
    keeper.scored(step, result)
    metrics = validation_metrics(result)
    session.report({"step": step, **metrics})
    show_rates(result, VALIDATION, session)
    return metrics
