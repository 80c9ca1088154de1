"""Reports a run's complete checkpoints to Ray Train.

Ray's Result and dashboard show checkpoints that were reported from inside Ray's own folder, and of one attempt only.
The files are elsewhere, in `checkpoints/`, where the run's journal decides over all attempts which of them are kept. So
a pointer is reported, Ray's own pattern for such files: <checkpoint>/pointer.json in Ray's folder, with the URL. Ray
keeps the same checkpoints as the journal, by the same config, and deletes pointers only.

A checkpoint without a score, which a stop leaves, is not reported: Ray would rank it, as the best or for ever as the
worst. A report cannot be withdrawn, so a quarantined checkpoint stays in the list of the attempt that reported it.
"""

import queue
from typing import Any

from transformers import TrainerCallback

from trainers.distributed.session import Session
from trainers.errors import StorageError
from trainers.run_folder.fencing import GroupWriter
from trainers.run_folder.journal import Checkpoint
from trainers.run_folder.layout import ATTEMPTS, CHECKPOINTS, POINTER, RAY


class CheckpointReports(TrainerCallback):
    """Reports each checkpoint once. A report is a barrier, so the main process decides and all ranks follow."""

    def __init__(self, session: Session, writer: GroupWriter, score_attribute: str):
        self._session, self._writer, self._score_attribute = session, writer, score_attribute
        self._uploaded: queue.SimpleQueue[Checkpoint] = queue.SimpleQueue()
        self._known: set[str] | None = session.broadcast(session.reported_pointers, "asking Ray for checkpoints")

    def report_kept(self) -> None:
        """Reports checkpoints of earlier attempts and worker groups; every rank calls this, before training."""
        if self._known is not None:
            self._report(self._session.broadcast(self._kept, "reporting earlier checkpoints to Ray"))

    def add(self, checkpoint: Checkpoint) -> None:
        """Adds a checkpoint that the main process has uploaded; thread-safe.

        If the pointer cannot be written, Ray does not show the checkpoint; the run continues.
        """
        if self._known is None or not self._is_scored(checkpoint):
            return
        try:
            self._write_pointer(checkpoint)
        except StorageError as error:
            self._session.show_from_main(f"Ray does not show {checkpoint.name}: {error}")
            return
        self._uploaded.put(checkpoint)

    def report_new(self) -> None:
        """Reports checkpoints added since the last call; every rank calls this, at the same step."""
        if self._known is not None:
            self._report(self._session.broadcast(self._added, "reporting checkpoints to Ray"))

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Reports checkpoints uploaded since the last line of the log, which all ranks reach at the same step."""
        self.report_new()

    def _kept(self) -> list[Checkpoint]:
        assert self._known is not None
        held = self._writer.check().checkpoints
        kept = [item for item in held if item.name not in self._known and self._is_scored(item)]
        for checkpoint in kept:
            self._write_pointer(checkpoint)
        return kept

    def _is_scored(self, checkpoint: Checkpoint) -> bool:
        return self._score_attribute in checkpoint.metrics

    def _added(self) -> list[Checkpoint]:
        return [self._uploaded.get() for _ in range(self._uploaded.qsize())]

    def _write_pointer(self, checkpoint: Checkpoint) -> None:
        folder, attempt = self._writer.folder, self._writer.attempt
        key = f"{ATTEMPTS}/{attempt}/{RAY}/{folder.ray_run_name(attempt)}/{checkpoint.name}/{POINTER}"
        folder.write_json(key, {"uri": folder.storage.url(f"{CHECKPOINTS}/{checkpoint.name}"), "step": checkpoint.step})

    def _report(self, checkpoints: list[Checkpoint]) -> None:
        for item in checkpoints:
            self._session.report({**item.metrics, "step": item.step}, pointer=item.name)
