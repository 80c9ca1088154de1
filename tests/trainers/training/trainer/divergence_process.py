"""One of two ranks whose training diverges: by a loss of rank 1, then by weights at a checkpoint."""

from typing import Any

import torch

from tests.trainers.training.gradient_process import Job, train_rank
from trainers.errors import DivergedError
from trainers.training.trainer.speech_trainer import SpeechTrainer

BAD_STEP = 2


def diverge(rank: int, job: Job) -> None:
    """Writes after which step each training has ended, and with what message."""
    trainers: list[SpeechTrainer] = []

    class Diverging(SpeechTrainer):
        def __init__(self, **arguments: Any):
            super().__init__(**arguments)
            self.compute_loss_func = self.diverging_loss
            trainers.append(self)

        def diverging_loss(self, *args: Any, **kwargs: Any) -> torch.Tensor:
            loss = self.objective.loss(*args, **kwargs)
            is_last_pass = self.accelerator.sync_gradients
            if len(trainers) == 1 and rank == 1 and self.state.global_step == BAD_STEP - 1 and not is_last_pass:
                return loss * float("nan")
            return loss

        def save_model(self, *args: Any, **kwargs: Any) -> None:
            with torch.no_grad():
                next(self._recognizer.model.parameters()).fill_(float("inf"))
            super().save_model(*args, **kwargs)

    for _ in range(2):
        try:
            train_rank(rank, job, Diverging)
            message = "it did not end"
        except DivergedError as error:
            message = str(error)
        step = trainers[-1].state.global_step
        with (job.folder / f"ended_{rank}").open("a") as file:
            file.write(f"{step}: {message}\n")
