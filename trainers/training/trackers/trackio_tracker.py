"""Trackio: in TRACKIO_DIR of the machine, on a server (TRACKIO_SERVER_URL) or on a Space (TRACKIO_SPACE_ID)."""

import os
from typing import Any

from trainers.run_folder.journal import KINDS, Position
from trainers.training.trackers.tracker import TrackedLine, TrackedRun


class Trackio:
    """A run in TRACKIO_PROJECT with a row for each step, which is sent once the next step has a line.

    So its last row identifies the last line that it has. If the run has not finished, the next attempt sends the row of
    its last step, and may add the score to it.
    """

    _run: Any
    _step: int
    _row: dict[str, float]

    def open(self, run: TrackedRun) -> Position | None:
        import trackio  # noqa: PLC0415

        self._row = {}
        self._run = trackio.init(
            project=os.environ.get("TRACKIO_PROJECT", "rayscribe"),
            name=f"{run.name}-{run.id[:8]}",
            resume="allow",
            config=dict(run.config),
            embed=False,
        )
        last = self._run._next_step - 1
        return (last, KINDS - 1) if last >= 0 else None

    def log(self, line: TrackedLine) -> None:
        if self._row and line.step != self._step:
            self._run.log(self._row, step=self._step)
            self._row = {}
        self._step = line.step
        self._row |= line.values

    def close(self, *, finished: bool) -> None:
        if self._row and finished:
            self._run.log(self._row, step=self._step)
        self._run.finish()
