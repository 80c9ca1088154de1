"""Renders the file of `ray up`, for any provider of nodes."""

import re
import shlex
from pathlib import PurePosixPath
from typing import Any

from cluster_configs.providers.provider import MARKET_TYPE, RayUpPart
from cluster_configs.rendering.cluster_spec import ClusterSpec
from cluster_configs.rendering.commented_yaml import to_commented_yaml
from cluster_configs.rendering.node_commands import (
    AGENT,
    CLUSTER_VARIABLES,
    IN_BACKGROUND,
    METRICS_PORT,
    STOP_VARIABLES,
    assignments,
    exports_of,
    version_check,
)
from trainers.errors import ConfigError

VARIABLES_FILE = "~/.rayscribe.env"
# Folder on the nodes for secrets' `client_file`.
SECRETS_FOLDER = "~/.rayscribe.secrets"
# Ports between nodes: GCS_PORT on the head; NODE_PORTS, and Ray's defaults 52365 and 10002 to 19999, on every node.
GCS_PORT = 6379
NODE_PORTS = {
    "object-manager-port": 8076,
    "node-manager-port": 8077,
    "dashboard-agent-grpc-port": 8078,
    "runtime-env-agent-port": 8079,
    "metrics-export-port": METRICS_PORT,
}
# Metrics of the autoscaler and of the dashboard, on Ray's default ports.
HEAD_METRICS_PORTS = "44217 and 44227"
# Options of `docker run` for a device; Ray itself adds --gpus if it finds NVIDIA's runtime.
DEVICE_OPTIONS = {
    "rocm": ["--device=/dev/kfd", "--device=/dev/dri", "--group-add=video", "--security-opt=seccomp=unconfined"],
    "hpu": ["--runtime=habana", "-e HABANA_VISIBLE_DEVICES=all", "-e OMPI_MCA_btl_vader_single_copy_mechanism=none",
            "--cap-add=sys_nice", "--ipc=host"],
}  # fmt: skip


def ray_up_file(spec: ClusterSpec) -> str:
    """Renders the YAML that `ray up` reads.

    Raises:
        ConfigError: the spec has no `ray_up`, or lacks what its provider needs.
    """
    part = spec.ray_up
    if part is None:
        raise ConfigError("ray_up: missing; say which provider starts the nodes, e.g. ray_up: {provider: local, …}")
    if part.needs_image and spec.image is None:
        raise ConfigError("image: missing; nodes of a cloud run an image, built from cluster_configs/Dockerfile")
    content: dict[str, Any] = {"cluster_name": spec.name}
    auth = {"ssh_user": part.user, **({"ssh_private_key": part.private_key} if part.private_key else {})}
    content |= {"provider": part.provider_section(), "auth": auth}
    if spec.image is not None:
        content["docker"] = _docker(spec, part)
    content |= part.node_types(spec.head, spec.pools)
    content["file_mounts"] = {"~/.ray/auth_token": f"~/.rayscribe/clusters/{spec.name}.token", **_brought(spec)}
    content |= {
        "setup_commands": _setup(spec, part),
        "head_setup_commands": [],
        "worker_setup_commands": [],
        "head_start_ray_commands": ["ray stop", _start_head(spec, part)],
        "worker_start_ray_commands": part.worker_start_commands(_start_worker(spec, part)),
    }
    return to_commented_yaml(content, _comments(spec, part), _head(spec, part))


def _docker(spec: ClusterSpec, part: RayUpPart) -> dict[str, Any]:
    if spec.storage.startswith("/"):
        _demand_mount(spec, part, spec.storage, "storage")
    hardware = sorted({pool.hardware for pool in spec.pools.values()})
    options = [option for name in hardware for option in DEVICE_OPTIONS.get(name, [])]
    return {
        "image": spec.image,
        "container_name": "rayscribe",
        "pull_before_run": True,
        "run_options": ["--ulimit nofile=65536:65536", *options, *part.run_options],
    }


def _brought(spec: ClusterSpec) -> dict[str, str]:
    """Returns the local files with secrets, by their paths on the nodes."""
    files = {name: place.client_file for name, place in spec.secrets.items()}
    return {f"{SECRETS_FOLDER}/{name}": path for name, path in files.items() if path is not None}


def _secrets(spec: ClusterSpec, part: RayUpPart) -> dict[str, str]:
    """Returns a shell expression for the value of each secret on a node."""
    found = {}
    for name, place in spec.secrets.items():
        if place.client_file is not None:
            found[name] = f"$(cat {SECRETS_FOLDER}/{name})"
        elif place.file is not None:
            _demand_mount(spec, part, place.file, f"secrets.{name}.file")
            found[name] = f"$(cat {shlex.quote(place.file)})"
        else:
            raise ConfigError(
                f"secrets.{name}: `ray up` copies neither variables nor Secrets to its nodes: give client_file, a file "
                "of this machine that it copies there, or file, a file that each node has"
            )
    return found


def _demand_mount(spec: ClusterSpec, part: RayUpPart, path: str, field: str) -> None:
    """Raises ConfigError if the nodes run a container and no option of `docker run` mounts the path in it."""
    words = " ".join(part.run_options).split()
    targets = [re.sub(r".*(?:target|dst|destination)=([^,]+).*|[^:]*:([^:]+).*", r"\1\2", word) for word in words]
    if spec.image is not None and not any(PurePosixPath(path).is_relative_to(target) for target in targets):
        folder = PurePosixPath(path).parent
        raise ConfigError(
            f"{field}: {path} is not in the container of `image`: mount its folder by ray_up.run_options, e.g. "
            f'["-v {folder}:{folder}"]'
        )


def _setup(spec: ClusterSpec, part: RayUpPart) -> list[str]:
    lines = exports_of(spec, _secrets(spec, part))
    commands = []
    if lines:
        quoted = " ".join(shlex.quote(line) for line in lines)
        commands = [
            f"printf '%s\\n' {quoted} > {VARIABLES_FILE}",
            f"grep -qs rayscribe.env ~/.bashrc || echo '. {VARIABLES_FILE}' >> ~/.bashrc",
        ]
    # Ray starts a shell for each command, which reads ~/.bashrc first.
    return [*commands, *spec.setup, version_check()]


def _start_head(spec: ClusterSpec, part: RayUpPart) -> str:
    options: dict[str, Any] = {"port": GCS_PORT, "dashboard-host": "127.0.0.1", "dashboard-port": 8265, **NODE_PORTS}
    own_variables, own_options = part.head_start(spec.head, spec.pools)
    options |= {**own_options, "autoscaling-config": "~/ray_bootstrap_config.yaml"}
    variables = assignments({**CLUSTER_VARIABLES, **STOP_VARIABLES, **own_variables})
    return f"export {variables}; ulimit -n 65536; ray start --head {_options(options)}"


def _start_worker(spec: ClusterSpec, part: RayUpPart) -> str:
    options = {"address": f"$RAY_HEAD_IP:{GCS_PORT}", **NODE_PORTS, **part.worker_options(spec.pools)}
    start = f"export {assignments(CLUSTER_VARIABLES)}; ulimit -n 65536; ray start {_options(options)}"
    if not any(pool.spot for pool in spec.pools.values()):
        return start
    agent = f"{AGENT}{part.agent_options} {IN_BACKGROUND}"
    # Ray passes a node's labels in this variable, as JSON without spaces; one command serves all pools.
    return f"""{start} && case "$RAY_OVERRIDE_LABELS" in *'"{MARKET_TYPE}":"spot"'*) {agent} esac"""


def _options(options: dict[str, Any]) -> str:
    return " ".join(f"--{name}={value}" for name, value in options.items())


def _head(spec: ClusterSpec, part: RayUpPart) -> str:
    gaudi = any(pool.hardware == "hpu" for pool in spec.pools.values())
    # These make a recipe for GPUs run on CPUs.
    on_cpus = " --set scaling.use_gpu=false --set scaling.resources_per_worker.GPU=0" if gaudi else ""
    return (
        f"{part.about(spec.pools)} Rendered by `rayscribe cluster render`; change the spec, and render it again.\n"
        "  rayscribe cluster up FILE\n"
        f"  rayscribe submit {shlex.quote(spec.recipe)} --cluster {spec.name} "
        f"--set {shlex.quote(f'run.storage_path={spec.storage}')}{on_cpus}\n"
    )


def _comments(spec: ClusterSpec, part: RayUpPart) -> dict[str, str]:
    found = {
        "idle_timeout_minutes": "Worker nodes without work are removed after this time; `rayscribe cluster up "
        "--idle-stop` ends the head too.",
        "file_mounts": "Ray's token, which `rayscribe cluster up` makes once. Every node requires it of every caller."
        + (" The other files have secrets." if _brought(spec) else ""),
        "setup_commands": "On every node, before Ray starts. The last fails if versions differ from the client's.",
        "head_start_ray_commands": "The dashboard listens on loopback: `rayscribe cluster dashboard` forwards its "
        "port. A stopped job has time to save a checkpoint.",
        "worker_start_ray_commands": f"Open between the nodes, and to nobody else: {GCS_PORT} and 10001 (head), "
        f"8076-8079, 52365 and 10002-19999; for Prometheus too: {METRICS_PORT}, and {HEAD_METRICS_PORTS} (head).",
    }
    if spec.image:
        found["docker"] = (
            "Built from cluster_configs/Dockerfile. Every node runs all its commands in it. Ray adds --net=host."
        )
    further = part.comments(spec.head, spec.pools)
    return found | {key: f"{found[key]} {text}" if key in found else text for key, text in further.items()}
