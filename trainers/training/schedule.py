"""The learning rate schedule of a run, whose length may change after the run has begun.

A run has one length, or several after `training.extend`, each of which continues at the end of the previous one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from accelerate.scheduler import AcceleratedScheduler
from torch.optim.lr_scheduler import LambdaLR
from transformers import TrainerCallback, TrainingArguments, get_scheduler

from trainers.errors import ConfigError
from trainers.training.tasks import Length

# transformers' schedules that do not depend on the last step, and those that are 0 at the last step.
ENDLESS = {"constant", "constant_with_warmup", "inverse_sqrt", "reduce_lr_on_plateau", "greedy"}
ZERO_AT_THE_END = {"linear", "cosine", "cosine_with_restarts"}
# Maps a step to the factor by which the peak learning rate is multiplied.
Factor = Callable[[int], float]


@dataclass(frozen=True)
class Schedule:
    """The lengths of a run: the first length, and another one for each `restart` or `constant`."""

    lengths: Sequence[Length]
    steps_per_epoch: int

    @property
    def last_step(self) -> int:
        return self.lengths[-1].steps(self.steps_per_epoch)

    def factor(self, shape: Callable[[int], Factor]) -> Factor:
        """Returns the factor of the peak learning rate as a function of the step."""
        ends = [length.steps(self.steps_per_epoch) for length in self.lengths]
        stretches: list[tuple[int, Factor]] = []
        for start, end, length in zip([0, *ends], ends, self.lengths, strict=False):
            stretches.append(
                (start, self._held(stretches[-1], start) if length.extend == "constant" else shape(end - start))
            )

        def factor(step: int) -> float:
            start, of = next(item for item in reversed(stretches) if item[0] <= step)
            return of(step - start)

        return factor

    @staticmethod
    def _held(before: tuple[int, Factor], start: int) -> Factor:
        last = before[1](start - before[0])
        if last <= 0:
            raise ConfigError(
                "training.extend is constant, but the learning rate has decayed to 0 at the run's original end: "
                "set training.extend: rescale or restart"
            )
        return lambda _: last


def new_scheduler(schedule: Schedule, arguments: TrainingArguments, optimizer: Any) -> LambdaLR:
    """Returns the learning rate scheduler of a run that was extended."""

    def shape(steps: int) -> Factor:
        # Only the factor is needed, but transformers requires an optimizer.
        other = torch.optim.SGD([torch.zeros(1)], lr=arguments.learning_rate)
        made = get_scheduler(
            arguments.lr_scheduler_type,
            other,
            num_warmup_steps=arguments.get_warmup_steps(steps),
            num_training_steps=steps,
            scheduler_specific_kwargs=arguments.lr_scheduler_kwargs,  # type: ignore[arg-type]
        )
        return made.lr_lambdas[0]  # type: ignore[no-any-return]

    return LambdaLR(optimizer, schedule.factor(shape))


class ApplyConfig(TrainerCallback):
    """Applies this attempt's config to values that the Trainer would take from the checkpoint."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Sets the intervals of logging, scoring and saving, and the learning rate, after the checkpoint is loaded."""
        state.compute_steps(args, state.max_steps)
        scheduler, optimizer = kwargs["lr_scheduler"], kwargs["optimizer"]
        if isinstance(scheduler, AcceleratedScheduler):
            # A wrapper for DeepSpeed.
            scheduler = scheduler.scheduler
        if isinstance(scheduler, LambdaLR):
            for group, peak, factor in zip(
                optimizer.param_groups, scheduler.base_lrs, scheduler.lr_lambdas, strict=True
            ):
                group["lr"] = peak * factor(scheduler.last_epoch)
