"""Shell commands that every node of a cluster runs, whatever starts it."""

import shlex
from collections.abc import Mapping
from importlib.metadata import version

from cluster_configs.rendering.cluster_spec import ClusterSpec

RAY_VERSION, RAYSCRIBE_VERSION = version("ray"), version("rayscribe")
# Ray Train's tab of the dashboard shows runs only with the second.
CLUSTER_VARIABLES = {"RAY_AUTH_MODE": "token", "RAY_TRAIN_ENABLE_STATE_TRACKING": "1"}
# A job that is stopped gets SIGTERM, and Ray's default is to kill it after 3 s: too short for a last checkpoint.
STOP_VARIABLES = {"RAY_JOB_STOP_SIGNAL": "SIGTERM", "RAY_JOB_STOP_WAIT_TIME_S": "120"}
METRICS_PORT = 8090
# Drains a spot node when its cloud announces to take it away.
AGENT = "nohup python -m trainers.distributed.preemption_agent"
IN_BACKGROUND = "< /dev/null > /tmp/preemption_agent.log 2>&1 &"


def exports_of(spec: ClusterSpec, secrets: Mapping[str, str]) -> list[str]:
    """A shell line for each module, variable and secret of a spec.

    Args:
        spec: The cluster.
        secrets: What gives the value of each secret, in the words of the shell, e.g. `$NAME` or `$(cat /file)`.
    """
    lines = [f"module load {' '.join(spec.modules)}"] if spec.modules else []
    return lines + [f'export {name}="{value}"' for name, value in {**spec.exports, **secrets}.items()]


def version_check() -> str:
    """A command that fails where a node has other versions than the client that renders the file."""
    program = (
        "from importlib.metadata import version as v; "
        f'want = {{"ray": "{RAY_VERSION}", "rayscribe": "{RAYSCRIBE_VERSION}"}}; '
        "have = {name: v(name) for name in want}; "
        'assert have == want, f"this node has {have}, the client {want}: install these"'
    )
    return f"python -c {shlex.quote(program)}"


def assignments(variables: dict[str, str]) -> str:
    """`NAME=value NAME=value`."""
    return " ".join(f"{name}={value}" for name, value in variables.items())
