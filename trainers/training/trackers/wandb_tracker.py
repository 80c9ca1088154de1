"""Weights & Biases: a run of its server, by the run's id; offline, a folder for `wandb sync` in the run folder."""

import os
from tempfile import mkdtemp
from typing import Any

from trainers.run_folder.journal import KINDS, Position
from trainers.run_folder.layout import WANDB
from trainers.training.trackers.tracker import TrackedLine, TrackedRun
from trainers.training.trackers.tracker_feed import LAST_WAIT_S

AXIS = "train/global_step"
# For the first answer of the server, which the end of a process waits for, too.
ANSWER_S = 30.0


class WeightsAndBiases:
    """A run in WANDB_PROJECT, whose history has one row for each line of metrics.

    A row's own number says its position, so the server's last row says what it has, and it refuses earlier ones.
    Offline nothing is known of rows before. There each worker group writes all: `wandb sync` replaces a run by what is
    in a folder.
    """

    _run: Any
    _was_opened: bool = False

    def open(self, run: TrackedRun) -> Position | None:
        # It says before it reads our settings where a key is from.
        os.environ.setdefault("WANDB_SILENT", "true")
        import wandb  # noqa: PLC0415

        if self._was_opened:
            # Its service process has the id in use since, even where nobody has answered.
            wandb.teardown()
        self._was_opened = True
        is_offline = os.environ.get("WANDB_MODE") == "offline"
        folder = run.files.renew(WANDB).parent if is_offline else mkdtemp(prefix="wandb-", dir=run.files.staging)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "rayscribe"),
            id=run.id,
            name=run.name,
            resume="allow",
            # What an attempt may change of the config.
            allow_val_change=True,
            # A notebook may have a run of its own.
            reinit="create_new",
            config=dict(run.config),
            dir=str(folder),
            settings=wandb.Settings(
                # It would send what this process prints, and its command line.
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
