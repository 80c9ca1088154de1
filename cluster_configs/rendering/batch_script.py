"""What the scripts of both batch schedulers have in common: what runs, and the signal's time."""

import shlex

from cluster_configs.rendering.cluster_spec import ClusterSpec
from trainers.errors import ConfigError


def what_runs(spec: ClusterSpec, *, requeue: bool) -> str:
    """A line that names what runs, where its results go, and whether the job is queued again."""
    return f"recipe={shlex.quote(spec.recipe)} storage={shlex.quote(spec.storage)} requeue={'yes' if requeue else 'no'}"


def seconds(time: str) -> int:
    """The seconds of [D-]HH:MM:SS."""
    days, _, clock = time.rpartition("-")
    hours, minutes, rest = (int(part) for part in clock.split(":"))
    return int(days or 0) * 86400 + hours * 3600 + minutes * 60 + rest


def refuse_early_signal(signal_s: int, time_limit: str, field: str) -> None:
    """Refuses a signal that comes before the job has begun.

    Raises:
        ConfigError: names both times.
    """
    if signal_s >= seconds(time_limit):
        raise ConfigError(
            f"{field}.signal_s ({signal_s} s) is not less than {field}.time_limit ({time_limit}): lower it, or allow "
            "more time"
        )
