"""MLflow: a run on the server of MLFLOW_TRACKING_URI, identified by a tag with the run's id."""

import os
from itertools import islice
from typing import Any

from transformers.utils.generic import flatten_dict

from trainers.run_folder.journal import Position
from trainers.training.trackers.tracker import TrackedLine, TrackedRun

RUN = "rayscribe.run"
# Step and kind of the last line that the run has.
LAST = "rayscribe.last_line"
# Limits of the number and length of parameters in one request that any store accepts.
BATCH, LONGEST = 100, 500


class MLflow:
    """A run in the experiment MLFLOW_EXPERIMENT_NAME; its parameters are those of its first attempt."""

    _client: Any
    _run_id: str

    def open(self, run: TrackedRun) -> Position | None:
        # Suppress MLflow's own lines.
        os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
        os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
        from mlflow import MlflowClient, set_experiment  # noqa: PLC0415

        self._client = MlflowClient()
        experiment = set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", "rayscribe")).experiment_id
        found = self._client.search_runs([experiment], f"tags.`{RUN}` = '{run.id}'", max_results=1)
        if found:
            self._run_id = found[0].info.run_id
            self._client.update_run(self._run_id, status="RUNNING")
            last = found[0].data.tags.get(LAST)
            return _position(last) if last is not None else None
        self._run_id = self._client.create_run(experiment, run_name=run.name, tags={RUN: run.id}).info.run_id
        self._log_config(run)
        return None

    def _log_config(self, run: TrackedRun) -> None:
        from mlflow.entities import Param  # noqa: PLC0415

        items = iter(flatten_dict(dict(run.config)).items())
        while batch := [Param(name, str(value)[:LONGEST]) for name, value in islice(items, BATCH)]:
            self._client.log_batch(self._run_id, params=batch)

    def log(self, line: TrackedLine) -> None:
        from mlflow.entities import Metric, RunTag  # noqa: PLC0415

        at_ms, (step, kind) = int(line.at_s * 1000), line.position
        metrics = [Metric(name, value, at_ms, step) for name, value in line.values.items()]
        self._client.log_batch(self._run_id, metrics=metrics, tags=[RunTag(LAST, f"{step} {kind}")])

    def close(self, *, finished: bool) -> None:
        self._client.set_terminated(self._run_id, "FINISHED" if finished else "KILLED")


def _position(text: str) -> Position:
    step, kind = text.split()
    return int(step), int(kind)
