"""Which checkpoints of a program stay in the run folder, and which it gets back when it starts again."""

import re
from collections.abc import Sequence

from trainers.run_folder.checkpoints import RetentionPolicy, newest
from trainers.run_folder.journal import Checkpoint
from trainers.scripts.outputs.progress import BEST_STEP

# Scores that are better the larger they are; error rates and losses are not.
_LARGER_IS_BETTER = re.compile(r"(^|_)(acc|accuracy|bleu|f1|pesq|stoi|si-?snr)(_|$)")
_NO_SCORES = {"loss", BEST_STEP}


class NewestAndBest(RetentionPolicy):
    """The newest checkpoints, and the best ones: programs load their best one at their end.

    transformers' Trainer names it in each checkpoint (load_best_model_at_end). By which score others choose, they do
    not say; the best one by each is kept that they have given their checkpoints.
    """

    def __init__(self, num_to_keep: int | None):
        super().__init__(num_to_keep, "step", "max")

    def surplus(self, checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
        best = self.best_ones(checkpoints)
        return [item for item in super().surplus(checkpoints) if item not in best]

    def best_ones(self, checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
        """The best checkpoint by each score that any has, the newest of equal ones; and the one the newest names."""
        names = sorted({name for item in checkpoints for name in item.finite_metrics} - _NO_SCORES)
        policies = [RetentionPolicy(None, name, "max" if _LARGER_IS_BETTER.search(name) else "min") for name in names]
        found = [policy.best(checkpoints) for policy in policies] + [_named_best(checkpoints)]
        return list({item.name: item for item in found if item is not None}.values())


def _named_best(checkpoints: Sequence[Checkpoint]) -> Checkpoint | None:
    last = newest(checkpoints)
    step = last.metrics.get(BEST_STEP) if last is not None else None
    return newest(item for item in checkpoints if item.step == step)
