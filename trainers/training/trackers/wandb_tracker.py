"""Weights & Biases: a run on its server, by the run's id; offline, a folder for `wandb sync` in the run folder."""

import os
from tempfile import mkdtemp
from typing import Any

from trainers.run_folder.journal import KINDS, Position
from trainers.run_folder.layout import WANDB
from trainers.training.trackers.tracker import TrackedLine, TrackedRun
from trainers.training.trackers.tracker_feed import LAST_WAIT_S

AXIS = "train/global_step"
# Timeout for the server's first response, and for sending at the end of a process.
ANSWER_S = 30.0


class WeightsAndBiases:
    """A run in WANDB_PROJECT, whose history has one row for each line of metrics.

    The number of a row is the position of its line, so the server's last row identifies the last line that it has; it
    refuses earlier rows. Offline, earlier rows are not known, so each worker group writes all: `wandb sync` replaces a
    run by the content of a folder.
    """

    _run: Any
    _was_opened: bool = False

    def open(self, run: TrackedRun) -> Position | None:
        # wandb prints the origin of the key before it reads our settings.
        os.environ.setdefault("WANDB_SILENT", "true")
        import wandb  # noqa: PLC0415

        if self._was_opened:
            # Its service process considers the id in use, even if the server has not responded.
            wandb.teardown()
        self._was_opened = True
        is_offline = os.environ.get("WANDB_MODE") == "offline"
        folder = run.files.renew(WANDB).parent if is_offline else mkdtemp(prefix="wandb-", dir=run.files.staging)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "rayscribe"),
            id=run.id,
            name=run.name,
            resume="allow",
            # Fields of the config that an attempt may change.
            allow_val_change=True,
            # A notebook may have a run of its own.
            reinit="create_new",
            config=dict(run.config),
            dir=str(folder),
            settings=wandb.Settings(
                # Otherwise wandb would send this process's output and command line.
                console="off",
                x_disable_meta=True,
                init_timeout=ANSWER_S,
                finish_timeout=LAST_WAIT_S,
            ),
        )
        self._run.define_metric("*", step_metric=AXIS)
        row = self._run.starting_step - 1
        return divmod(row, KINDS) if row >= 0 else None

    def log(self, line: TrackedLine) -> None:
        step, kind = line.position
        self._run.log({**line.values, AXIS: step, "_timestamp": line.at_s}, step=step * KINDS + kind)

    def close(self, *, finished: bool) -> None:
        self._run.finish(exit_code=0 if finished else 1)
