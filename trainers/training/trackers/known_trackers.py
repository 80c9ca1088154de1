"""The trackers that Rayscribe feeds itself. To add one, write its `Tracker`, and add a line to KNOWN_TRACKERS.

Other trackers in `training.report_to` are transformers' own.
"""

import os
from collections.abc import Callable, Mapping
from itertools import islice
from tempfile import mkdtemp
from typing import Any

from transformers.integrations.integration_utils import get_available_reporting_integrations
from transformers.utils.generic import flatten_dict

from trainers.config.schema import TrainConfig
from trainers.run_folder.journal import KINDS
from trainers.run_folder.layout import TENSORBOARD, WANDB
from trainers.training.trackers.tracker_feed import LAST_WAIT_S, TrackedLine, TrackedRun, Tracker

# MLflow: tags with the run's id, and with the number of the last line that the tracker has.
RUN, LAST = "rayscribe.run", "rayscribe.last_line"
# MLflow: number of parameters in one request, and maximum length of a value, that any store accepts.
BATCH, LONGEST = 100, 500
# Weights & Biases: the metric that is the x axis of all others.
AXIS = "train/global_step"
# Weights & Biases: timeout for the server's first response, and for sending at the end of a process.
ANSWER_S = 30.0


class MLflow:
    """A run in the experiment MLFLOW_EXPERIMENT_NAME on the server of MLFLOW_TRACKING_URI, found by a tag with its id.

    The parameters are those of the run's first attempt.
    """

    _client: Any
    _run_id: str

    def open(self, run: TrackedRun) -> int:
        os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
        os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
        from mlflow import MlflowClient, set_experiment  # noqa: PLC0415
        from mlflow.entities import Param  # noqa: PLC0415

        self._client = MlflowClient()
        experiment = set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", "rayscribe")).experiment_id
        found = self._client.search_runs([experiment], f"tags.`{RUN}` = '{run.id}'", max_results=1)
        if found:
            self._run_id = found[0].info.run_id
            self._client.update_run(self._run_id, status="RUNNING")
            return int(found[0].data.tags.get(LAST, -1))
        self._run_id = self._client.create_run(experiment, run_name=run.name, tags={RUN: run.id}).info.run_id
        items = iter(flatten_dict(dict(run.config)).items())
        while batch := [Param(name, str(value)[:LONGEST]) for name, value in islice(items, BATCH)]:
            self._client.log_batch(self._run_id, params=batch)
        return -1

    def log(self, line: TrackedLine) -> None:
        from mlflow.entities import Metric, RunTag  # noqa: PLC0415

        at_ms = int(line.at_s * 1000)
        metrics = [Metric(name, value, at_ms, line.step) for name, value in line.values.items()]
        self._client.log_batch(self._run_id, metrics=metrics, tags=[RunTag(LAST, str(line.number))])

    def close(self, *, finished: bool) -> None:
        self._client.set_terminated(self._run_id, "FINISHED" if finished else "KILLED")


class TensorBoard:
    """One event file in tensorboard/ of the run folder, which each worker group writes again from the first step on."""

    _writer: Any

    def open(self, run: TrackedRun) -> int:
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415

        # With purge_step, a TensorBoard that shows the previous file drops that file's points.
        self._writer = SummaryWriter(str(run.files.renew(TENSORBOARD)), purge_step=0)
        return -1

    def log(self, line: TrackedLine) -> None:
        for name, value in line.values.items():
            self._writer.add_scalar(name, value, line.step, walltime=line.at_s)
        self._writer.flush()

    def close(self, *, finished: bool) -> None:
        self._writer.close()


class Trackio:
    """A run in TRACKIO_PROJECT: in TRACKIO_DIR, on a server (TRACKIO_SERVER_URL) or on a Space (TRACKIO_SPACE_ID).

    The row of a step is sent when the next step has a line, so that the last row identifies the last line that Trackio
    has. If the run has not finished, the next attempt sends the row of the last step, and may add the score.
    """

    _run: Any
    _step: int
    _row: dict[str, float]

    def open(self, run: TrackedRun) -> int:
        import trackio  # noqa: PLC0415

        self._row = {}
        self._run = trackio.init(
            project=os.environ.get("TRACKIO_PROJECT", "rayscribe"),
            name=f"{run.name}-{run.id[:8]}",
            resume="allow",
            config=dict(run.config),
            embed=False,
        )
        return int(self._run._next_step) * KINDS - 1

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


class WeightsAndBiases:
    """A run in WANDB_PROJECT, whose history has one row for each line of metrics.

    A row has the number of its line, so the server's last row identifies the last line that the server has; it refuses
    earlier rows. Offline (with a folder for `wandb sync` in the run folder), earlier rows are not known, so each worker
    group writes all rows, and `wandb sync` replaces the run by the folder's content.
    """

    _run: Any
    _was_opened: bool = False

    def open(self, run: TrackedRun) -> int:
        # Set early, since wandb prints the origin of the API key before it reads our settings.
        os.environ.setdefault("WANDB_SILENT", "true")
        import wandb  # noqa: PLC0415

        if self._was_opened:
            # Otherwise wandb's service process considers the id in use, even if the server has not responded.
            wandb.teardown()
        self._was_opened = True
        is_offline = os.environ.get("WANDB_MODE") == "offline"
        folder = run.files.renew(WANDB).parent if is_offline else mkdtemp(prefix="wandb-", dir=run.files.staging)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "rayscribe"),
            id=run.id,
            name=run.name,
            resume="allow",
            # An attempt may change some fields of the config.
            allow_val_change=True,
            # A notebook may already have another run.
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
        return int(self._run.starting_step) - 1

    def log(self, line: TrackedLine) -> None:
        self._run.log({**line.values, AXIS: line.step, "_timestamp": line.at_s}, step=line.number)

    def close(self, *, finished: bool) -> None:
        self._run.finish(exit_code=0 if finished else 1)


KNOWN_TRACKERS: Mapping[str, Callable[[], Tracker]] = {
    "mlflow": MLflow,
    "tensorboard": TensorBoard,
    "trackio": Trackio,
    "wandb": WeightsAndBiases,
}


def reported_to(config: TrainConfig) -> list[str]:
    """Returns the trackers in `training.report_to`; for `all`, those whose packages are installed here."""
    names = config.training.report_to
    if names == ["all"]:
        installed: list[str] = get_available_reporting_integrations()
        return installed
    return [name for name in names if name != "none"]
