"""Shell text that several targets share: commands of every node."""

import shlex
from collections.abc import Mapping
from importlib.metadata import version

from cluster_configs.rendering.cluster_spec import ClusterSpec

RAY_VERSION, RAYSCRIBE_VERSION = version("ray"), version("rayscribe")
# Ray Train's tab of the dashboard shows runs only with the second.
CLUSTER_VARIABLES = {"RAY_AUTH_MODE": "token", "RAY_TRAIN_ENABLE_STATE_TRACKING": "1"}
# A stopped job gets SIGTERM. By default, Ray kills it after 3 s, too early for a last checkpoint.
STOP_VARIABLES = {"RAY_JOB_STOP_SIGNAL": "SIGTERM", "RAY_JOB_STOP_WAIT_TIME_S": "120"}
METRICS_PORT = 8090
# Drains a spot node when its cloud announces a preemption.
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
