"""Shell commands that every node of a cluster runs, whatever starts it."""

import shlex
from importlib.metadata import version

from cluster_configs.rendering.cluster_spec import ClusterSpec
from trainers.errors import ConfigError

RAY_VERSION, RAYSCRIBE_VERSION = version("ray"), version("rayscribe")
# Ray Train's tab of the dashboard shows runs only with the second.
CLUSTER_VARIABLES = {"RAY_AUTH_MODE": "token", "RAY_TRAIN_ENABLE_STATE_TRACKING": "1"}
# A job that is stopped gets SIGTERM, and Ray's default is to kill it after 3 s: too short for a last checkpoint.
STOP_VARIABLES = {"RAY_JOB_STOP_SIGNAL": "SIGTERM", "RAY_JOB_STOP_WAIT_TIME_S": "120"}
METRICS_PORT = 8090


def exports_of(spec: ClusterSpec) -> list[str]:
    """A shell line for each module, variable and secret of a spec.

    Raises:
        ConfigError: a secret is a Kubernetes Secret, which other nodes do not have.
    """
    lines = [f"module load {' '.join(spec.modules)}"] if spec.modules else []
    lines += [f'export {name}="{value}"' for name, value in spec.exports.items()]
    for name, place in spec.secrets.items():
        if place.file is not None:
            lines.append(f'export {name}="$(cat {shlex.quote(place.file)})"')
        elif place.env is None:
            raise ConfigError(f"secrets.{name}: only Kubernetes has Secrets: give env or file for this target")
        elif place.env != name:
            lines.append(f'export {name}="${place.env}"')
    return lines


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
