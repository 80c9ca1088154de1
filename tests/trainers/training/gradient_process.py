"""One rank of one optimizer step, in a process of its own; gives the norm of the step's gradient.

Started by test_gradients: real torch.distributed over gloo, the real trainer, real prepared clips.
"""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from trainers.config.schema import TrainConfig
from trainers.data.prepared_set import PreparedSet
from trainers.distributed.session import LocalSession
from trainers.models.families import family_of
from trainers.training.arguments import silence_libraries, training_arguments
from trainers.training.callbacks import Reseed
from trainers.training.planning import plan_training
from trainers.training.schedule import Schedule
from trainers.training.tasks import Length
from trainers.training.trainer.planned_batches import PlannedBatches
from trainers.training.trainer.speech_trainer import SpeechTrainer


@dataclass(frozen=True)
class Job:
    """What all ranks of one group are told.

    Attributes:
        config: Says workers, accumulation and global batch.
        prepared: The training set.
        description: The scratch model's folder. None: the config names weights.
        folder: Where norms are written, one file a rank, and where ranks meet.
        plain_mean: Train on the mean over each forward pass's own labels, as a test of the test.
    """

    config: TrainConfig
    prepared: PreparedSet
    description: Path | None
    folder: Path
    plain_mean: bool = False


class PlainMean(SpeechTrainer):
    """A trainer whose loss is wrong for all but one worker and one forward pass."""

    def __init__(self, **arguments: Any):
        super().__init__(**arguments)
        self.compute_loss_func = lambda outputs, labels, num_items_in_batch: self.objective.loss(outputs, labels)


def one_step(rank: int, job: Job) -> None:
    """Runs one rank and writes norm_<rank>."""
    session, trainer = train_rank(rank, job, PlainMean if job.plain_mean else SpeechTrainer)
    norms = [entry["grad_norm"] for entry in trainer.state.log_history if "grad_norm" in entry]
    (job.folder / f"norm_{rank}").write_text(repr(float(norms[0])))
    session.barrier("writing the norms")


def train_rank(rank: int, job: Job, kind: type[SpeechTrainer]) -> tuple[LocalSession, SpeechTrainer]:
    """Trains one rank for `training.max_steps` steps."""
    workers = job.config.scaling.max_workers
    torch.set_num_threads(1)
    silence_libraries()
    if workers > 1:
        # A lone process must not find these: accelerate would look for company.
        os.environ.update({"RANK": str(rank), "WORLD_SIZE": str(workers), "LOCAL_RANK": str(rank)})
        # It asks for an address, too, and does not use it: the ranks meet at a file, which no port can be taken from.
        os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"})
        if not torch.distributed.is_initialized():
            meeting = f"file://{job.folder}/meeting"
            torch.distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=workers)
    session = LocalSession.of_this_process()
    recognizer = family_of(job.config.model).load_recognizer(job.config.model, job.description, seed=1)
    regularizer = recognizer.new_regularizer(job.config.model, None)
    if regularizer is not None:
        # Nothing differs from the original before a step is made.
        torch.nn.init.normal_(
            recognizer.model.get_encoder().layer_norm.bias, generator=torch.Generator().manual_seed(0)
        )
        recognizer = replace(recognizer, regularizer=regularizer)
    plan, clips = plan_training(job.config, job.prepared, recognizer, workers)
    arguments = training_arguments(
        job.config,
        output_dir=job.folder / f"out-{rank}",
        accumulation=plan.shape.accumulation,
        on_gpu=False,
    )
    trainer = kind(
        recognizer=recognizer,
        arguments=arguments,
        batches=PlannedBatches(plan, session.rank, clips.reader.prefetch, 0, regularizer),
        schedule=Schedule([Length(job.config.training.max_steps, None)], plan.steps_per_epoch),
        clips=clips,
        evaluate=lambda step: {},
        callbacks=[Reseed(1, session.rank)],
    )
    trainer.train()
    return session, trainer
