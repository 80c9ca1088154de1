"""Shell text that several targets share: commands of every node, and requests to both batch schedulers."""

import shlex
from collections.abc import Mapping
from importlib.metadata import version

from cluster_configs.rendering.cluster_spec import ClusterSpec
from trainers.errors import ConfigError

RAY_VERSION, RAYSCRIBE_VERSION = version("ray"), version("rayscribe")
# Ray Train's tab of the dashboard shows runs only with the second.
CLUSTER_VARIABLES = {"RAY_AUTH_MODE": "token", "RAY_TRAIN_ENABLE_STATE_TRACKING": "1"}
# A stopped job gets SIGTERM, and Ray's default is to kill it after 3 s: too short for a last checkpoint.
STOP_VARIABLES = {"RAY_JOB_STOP_SIGNAL": "SIGTERM", "RAY_JOB_STOP_WAIT_TIME_S": "120"}
METRICS_PORT = 8090
# Drains a spot node when its cloud announces to take it away.
AGENT = "nohup python -m rayscribe.trainers.distributed.preemption_agent"
IN_BACKGROUND = "< /dev/null > /tmp/preemption_agent.log 2>&1 &"


def exports_of(spec: ClusterSpec, secrets: Mapping[str, str]) -> list[str]:
    """Returns a shell line for each module, variable and secret of a spec.

    `secrets` has the value of each secret as a shell expression, e.g. `$NAME` or `$(cat /file)`.
    """
    lines = [f"module load {' '.join(spec.modules)}"] if spec.modules else []
    return lines + [f'export {name}="{value}"' for name, value in {**spec.exports, **secrets}.items()]


def version_check() -> str:
    """Returns a command that fails on a node with other versions than the client that renders the file."""
    program = (
        "from importlib.metadata import version as v; "
        f'want = {{"ray": "{RAY_VERSION}", "rayscribe": "{RAYSCRIBE_VERSION}"}}; '
        "have = {name: v(name) for name in want}; "
        'assert have == want, f"this node has {have}, the client {want}: install these"'
    )
    return f"python -c {shlex.quote(program)}"


def assignments(variables: dict[str, str]) -> str:
    """Formats variables: `NAME=value NAME=value`."""
    return " ".join(f"{name}={value}" for name, value in variables.items())


def what_runs(spec: ClusterSpec, *, requeue: bool) -> str:
    """Returns a line that names the recipe, the storage of its results, and whether the job is queued again."""
    return f"recipe={shlex.quote(spec.recipe)} storage={shlex.quote(spec.storage)} requeue={'yes' if requeue else 'no'}"


def exports_of_job(spec: ClusterSpec) -> list[str]:
    """Returns a shell line for each module, variable and secret of a spec; the job ends if a secret's file is missing.

    Raises:
        ConfigError: a secret is at a location that no node of a batch scheduler can read.
    """
    found, checks = {}, []
    for name, place in spec.secrets.items():
        if place.file is not None:
            # `export` exits with 0, even if the command in its value fails.
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
    """Returns the seconds of [D-]HH:MM:SS."""
    days, _, clock = time.rpartition("-")
    hours, minutes, rest = (int(part) for part in clock.split(":"))
    return int(days or 0) * 86400 + hours * 3600 + minutes * 60 + rest


def refuse_early_signal(signal_s: int, time_limit: str, field: str) -> None:
    """Rejects a signal that would come before the job has begun.

    Raises:
        ConfigError: names both times.
    """
    if signal_s >= seconds(time_limit):
        raise ConfigError(
            f"{field}.signal_s ({signal_s} s) is not less than {field}.time_limit ({time_limit}): lower it, or allow "
            "more time"
        )
