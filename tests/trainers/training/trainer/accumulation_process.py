"""One of two ranks that trains two steps of three forward passes each, and counts how often gradients are reduced."""

from typing import Any

import torch
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from tests.trainers.training.gradient_process import Job, train_rank
from trainers.training.trainer.speech_trainer import SpeechTrainer


def train_and_count(rank: int, job: Job) -> None:
    """Writes, for each forward pass, how many gradient buckets were reduced in its backward pass."""
    reduced: list[int] = []

    class Counting(SpeechTrainer):
        def training_step(self, model: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
            assert isinstance(model, DistributedDataParallel)
            if not reduced:
                model.register_comm_hook(None, counted)
            reduced.append(0)
            return super().training_step(model, *args, **kwargs)

    def counted(state: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        reduced[-1] += 1
        return allreduce_hook(state, bucket)

    train_rank(rank, job, Counting)
    (job.folder / f"reduced_{rank}").write_text(" ".join(map(str, reduced)))
