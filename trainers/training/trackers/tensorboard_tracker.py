"""TensorBoard: event files in the run folder, tensorboard/."""

from typing import Any

from trainers.run_folder.journal import Position
from trainers.run_folder.layout import TENSORBOARD
from trainers.training.trackers.tracker import TrackedLine, TrackedRun


class TensorBoard:
    """One event file, which each worker group writes from the run's first step on."""

    _writer: Any

    def open(self, run: TrackedRun) -> Position | None:
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415

        # purge_step makes a TensorBoard that shows the previous file drop its points.
        self._writer = SummaryWriter(str(run.files.renew(TENSORBOARD)), purge_step=0)
        return None

    def log(self, line: TrackedLine) -> None:
        for name, value in line.values.items():
            self._writer.add_scalar(name, value, line.step, walltime=line.at_s)
        self._writer.flush()

    def close(self, *, finished: bool) -> None:
        self._writer.close()
