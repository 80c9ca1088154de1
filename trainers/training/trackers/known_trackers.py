"""Trackers that show all attempts of a run as one. To add one: a file with its `Tracker`, and a line here.

Other trackers in `training.report_to` are transformers' own.
"""

from collections.abc import Callable, Mapping

from transformers.integrations.integration_utils import get_available_reporting_integrations

from trainers.config.schema import TrainConfig
from trainers.training.trackers.mlflow_tracker import MLflow
from trainers.training.trackers.tensorboard_tracker import TensorBoard
from trainers.training.trackers.tracker import Tracker
from trainers.training.trackers.trackio_tracker import Trackio
from trainers.training.trackers.wandb_tracker import WeightsAndBiases

KNOWN_TRACKERS: Mapping[str, Callable[[], Tracker]] = {
    "mlflow": MLflow,
    "tensorboard": TensorBoard,
    "trackio": Trackio,
    "wandb": WeightsAndBiases,
}


def reported_to(config: TrainConfig) -> list[str]:
    """Returns the trackers that a config names; for `all`, those whose packages are installed here."""
    names = config.training.report_to
    if names == ["all"]:
        installed: list[str] = get_available_reporting_integrations()
        return installed
    return [name for name in names if name != "none"]
