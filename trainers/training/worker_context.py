"""The context shared by all steps of a training worker."""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from trainers.config.schema import TrainConfig
from trainers.distributed.session import Session
from trainers.run_folder.attempt_status import StatusWriter
from trainers.run_folder.checkpoints import RetentionPolicy
from trainers.run_folder.fencing import GroupWriter
from trainers.run_folder.journal import Checkpoint
from trainers.run_folder.layout import RunFolder
from trainers.run_folder.staging import Staging
from trainers.scoring.report.live_page import LivePage
from trainers.training.tasks import TrainTask
from trainers.training.trackers.tracker_feed import Trackers


@dataclass(frozen=True)
class WorkerContext:
    """The context of one process of a worker group, from its start to its end."""

    task: TrainTask
    session: Session
    staging: Staging
    writer: GroupWriter
    status: StatusWriter
    trackers: Trackers
    page: LivePage

    @property
    def config(self) -> TrainConfig:
        return self.task.config

    @property
    def folder(self) -> RunFolder:
        return self.writer.folder

    @property
    def device(self) -> str:
        """Device for models that this rank opens itself."""
        return "cuda" if self.config.scaling.use_gpu else "cpu"

    @property
    def retention(self) -> RetentionPolicy:
        part = self.config.checkpoint
        return RetentionPolicy(part.num_to_keep, part.score_attribute, part.checkpoint_score_order)

    def show_metrics(self, line: str) -> None:
        """Sends an accepted line of metrics to the trackers; a validation also requests a new page."""
        self.trackers.send(line)
        if '"eval_wer"' in line:
            self.page.request()


class ResumePoint(NamedTuple):
    """A checkpoint from which training resumes, or with whose weights it begins, and its local folder."""

    checkpoint: Checkpoint
    local: Path
