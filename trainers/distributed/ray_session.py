"""The session of a Ray Train worker."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import ray.train
from ray.train import Checkpoint, CheckpointConsistencyMode, CheckpointUploadMode

from trainers.distributed.board import STOPPABLE, WORKING
from trainers.distributed.ray_connection import is_stop_asked
from trainers.distributed.session import Session


@dataclass(frozen=True)
class RaySession(Session):
    """A worker of a Ray TorchTrainer; its lines go to the board, which the driver reads.

    Attributes:
        board: Handle of the actor that `ray_connection.open_board` gives.
    """

    board: Any = None

    @classmethod
    def of_this_worker(cls, board: Any) -> "RaySession":
        """The session of the calling worker."""
        context = ray.train.get_context()
        return cls(context.get_world_rank(), context.get_world_size(), context.get_local_rank(), board)

    def say(self, line: str) -> None:
        """Sends the line to the driver, which prints it once."""
        if self.is_main_process:
            self.board.put.remote(line)

    def report(self, metrics: dict[str, Any], pointer: str | None = None) -> None:
        """Reports to Ray Train, for its dashboard and its Result; the pointer is in its folder already."""
        checkpoint = None
        if pointer is not None:
            storage = ray.train.get_context().get_storage()
            checkpoint = Checkpoint(f"{storage.experiment_fs_path}/{pointer}", storage.storage_filesystem)
        ray.train.report(
            metrics,
            checkpoint=checkpoint,
            checkpoint_dir_name=pointer,
            checkpoint_upload_mode=CheckpointUploadMode.NO_UPLOAD,
        )

    def reported_pointers(self) -> set[str] | None:
        """What earlier worker groups of this attempt have reported, and Ray Train has not deleted."""
        kept = ray.train.get_all_reported_checkpoints(consistency_mode=CheckpointConsistencyMode.COMMITTED)
        return {PurePosixPath(item.checkpoint.path).name for item in kept}

    def begin(self) -> None:
        """Reports to the driver that the workers have started."""
        if self.is_main_process:
            self.board.enter.remote(WORKING)

    @contextlib.contextmanager
    def stoppable(self) -> Iterator[None]:
        """Has the driver wait after a request to stop, for as long as the block runs."""
        if self.is_main_process:
            self.board.enter.remote(STOPPABLE)
        yield
        if self.is_main_process:
            self.board.enter.remote(WORKING)

    def stop_asked(self) -> bool:
        """Reads the board, for all ranks."""
        return self.is_main_process and is_stop_asked(self.board)
