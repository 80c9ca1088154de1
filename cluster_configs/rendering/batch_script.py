"""What the scripts of both batch schedulers have in common: variables, what runs, and the signal's time."""

import shlex

from cluster_configs.rendering.cluster_spec import ClusterSpec
from cluster_configs.rendering.node_commands import exports_of
from trainers.errors import ConfigError


def what_runs(spec: ClusterSpec, *, requeue: bool) -> str:
    """A line that names what runs, where its results go, and whether the job is queued again."""
    return f"recipe={shlex.quote(spec.recipe)} storage={shlex.quote(spec.storage)} requeue={'yes' if requeue else 'no'}"


def exports_of_job(spec: ClusterSpec) -> list[str]:
    """A shell line for each module, variable and secret of a spec; the job ends where a secret's file is missing.

    Raises:
        ConfigError: a secret is where no node of a batch scheduler finds it.
    """
    found, checks = {}, []
    for name, place in spec.secrets.items():
        if place.file is not None:
            # `export` ends with 0, whatever the command in its value ends with.
            text = shlex.quote(f"secrets.{name}: cannot read {place.file}")
            checks.append(f"[ -r {shlex.quote(place.file)} ] || {{ echo {text} >&2; exit 1; }}")
            found[name] = f"$(cat {shlex.quote(place.file)})"
        elif place.env is None:
            where = "only Kubernetes has Secrets" if place.kubernetes else "only `ray up` brings files to its nodes"
            raise ConfigError(f"secrets.{name}: {where}: give env or file for this target")
        elif place.env != name:
            found[name] = f"${place.env}"
    return [*checks, *exports_of(spec, found)]


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
