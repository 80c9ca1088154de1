"""The task of a training worker, and what all steps of its work share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from trainers.config.schema import TrainConfig
from trainers.data.prepared_set import PreparedSet
from trainers.distributed.session import Session
from trainers.run_folder.attempt_status import StatusWriter
from trainers.run_folder.checkpoints import RetentionPolicy
from trainers.run_folder.fencing import GroupWriter
from trainers.run_folder.journal import Checkpoint
from trainers.run_folder.layout import RunFolder
from trainers.run_folder.staging import Staging
from trainers.training.schedule import Length


@dataclass(frozen=True)
class TrainTask:
    """Everything that the driver passes to a training worker.

    Attributes:
        run_id: Unique name of the run.
        processor: Folder of a new model's description in the run folder. None: a pretrained model's own.
        weights: The checkpoint whose weights a run begins with. None: the model's own.
        lengths: How long the run is, see `schedule`.
        managed_by_service: Whether a service counts the attempts, see `staging.Staging.wait_for_earlier_groups`.
    """

    config: TrainConfig
    sets: Mapping[str, PreparedSet]
    attempt: int
    run_id: str
    processor: str | None
    weights: str | None
    lengths: Sequence[Length]
    managed_by_service: bool


@dataclass(frozen=True)
class WorkerContext:
    """One process of a worker group, from its start to its end."""

    task: TrainTask
    session: Session
    staging: Staging
    writer: GroupWriter
    status: StatusWriter

    @property
    def config(self) -> TrainConfig:
        return self.task.config

    @property
    def folder(self) -> RunFolder:
        return self.writer.folder

    @property
    def device(self) -> str:
        """Where models are put that this rank opens itself."""
        return "cuda" if self.config.scaling.use_gpu else "cpu"

    @property
    def retention(self) -> RetentionPolicy:
        part = self.config.checkpoint
        return RetentionPolicy(part.num_to_keep, part.score_attribute, part.checkpoint_score_order)


class ResumePoint(NamedTuple):
    """A checkpoint that training goes on from, or whose weights it begins with."""

    checkpoint: Checkpoint
    local: Path
