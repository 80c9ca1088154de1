"""The file of `ray up`: own hosts over SSH, AWS EC2, Google Compute Engine."""

import json
import re
import shlex
from pathlib import PurePosixPath
from typing import Any

from cluster_configs.rendering.cloud_nodes import aws_node, aws_provider, gcp_node, gcp_provider
from cluster_configs.rendering.cluster_spec import ClusterSpec, HeadPart, PoolPart
from cluster_configs.rendering.commented_yaml import to_commented_yaml
from cluster_configs.rendering.node_commands import (
    AGENT,
    CLUSTER_VARIABLES,
    IN_BACKGROUND,
    METRICS_PORT,
    RESOURCE,
    STOP_VARIABLES,
    assignments,
    exports_of,
    growth_variables,
    resources_of,
    version_check,
)
from cluster_configs.rendering.target_parts import AwsPart, CloudPart, GcpPart, LocalPart, RayUpPart
from trainers.errors import ConfigError

HEAD = "head"
VARIABLES_FILE = "~/.rayscribe.env"
# On the nodes: what `client_file` of a secret brings there.
SECRETS_FOLDER = "~/.rayscribe.secrets"
# Between nodes; a worker node listens on the first five too, and on 52365 and 10002 to 19999, Ray's defaults.
GCS_PORT = 6379
NODE_PORTS = {
    "object-manager-port": 8076,
    "node-manager-port": 8077,
    "dashboard-agent-grpc-port": 8078,
    "runtime-env-agent-port": 8079,
    "metrics-export-port": METRICS_PORT,
}
# Numbers of the autoscaler and of the dashboard, Ray's defaults.
HEAD_METRICS_PORTS = "44217 and 44227"
# Ray's newer autoscaler counts the head of own hosts as a worker, and leaves one of the workers out (Ray 2.60). The
# older one waits 900 s until a host can be logged in to, and then gives it up for good; a host may be away for a week.
OWN_HOSTS_VARIABLES = {"RAY_enable_autoscaler_v2": "0", "AUTOSCALER_NODE_START_WAIT_S": "604800"}
# Ray's autoscaler gives a host up for good after one start that failed (Ray 2.60), as where the node was busy and did
# not come up in Ray's 30 s. Tried five times.
START_AGAIN = "[ $((tries += 1)) -lt 5 ] || exit 1; ray stop; sleep 10"
MARKET_TYPE = "ray.io/market-type"
# What `docker run` needs for a device; Ray itself adds --gpus where it finds NVIDIA's runtime.
DEVICE_OPTIONS = {
    "cpu": [],
    "cuda": [],
    "rocm": ["--device=/dev/kfd", "--device=/dev/dri", "--group-add=video", "--security-opt=seccomp=unconfined"],
    "hpu": ["--runtime=habana", "-e HABANA_VISIBLE_DEVICES=all", "-e OMPI_MCA_btl_vader_single_copy_mechanism=none",
            "--cap-add=sys_nice"],
}  # fmt: skip


def ray_up_file(spec: ClusterSpec) -> str:
    """The YAML that `ray up` reads.

    Raises:
        ConfigError: the spec has no `ray_up`, or lacks what its provider needs.
    """
    part = spec.ray_up
    if part is None:
        raise ConfigError("ray_up: missing; say which provider starts the nodes, e.g. ray_up: {provider: local, …}")
    if isinstance(part, CloudPart) and spec.image is None:
        raise ConfigError("image: missing; nodes of a cloud run an image, built from cluster_configs/Dockerfile")
    content: dict[str, Any] = {"cluster_name": spec.name}
    if isinstance(part, CloudPart):
        content["max_workers"] = sum(pool.max for pool in spec.pools.values())
        content["idle_timeout_minutes"] = part.idle_timeout_minutes
    content |= {"provider": _provider(part), "auth": _auth(part)}
    if spec.image is not None:
        content["docker"] = _docker(spec, part)
    if isinstance(part, CloudPart):
        content |= {"head_node_type": HEAD, "available_node_types": _node_types(spec, part)}
    content["file_mounts"] = {"~/.ray/auth_token": f"~/.rayscribe/clusters/{spec.name}.token", **_brought(spec)}
    content |= {
        "setup_commands": _setup(spec, part),
        "head_setup_commands": [],
        "worker_setup_commands": [],
        "head_start_ray_commands": ["ray stop", _start_head(spec, part)],
        "worker_start_ray_commands": ["ray stop", _start_worker(spec, part)],
    }
    return to_commented_yaml(content, _comments(spec, part), _head(spec, part))


def _provider(part: RayUpPart) -> dict[str, Any]:
    if isinstance(part, AwsPart):
        return aws_provider(part)
    if isinstance(part, GcpPart):
        return gcp_provider(part)
    assert isinstance(part, LocalPart)
    return {"type": "local", "head_ip": part.head_ip, "worker_ips": part.worker_ips}


def _auth(part: RayUpPart) -> dict[str, Any]:
    return {"ssh_user": part.user, **({"ssh_private_key": part.private_key} if part.private_key else {})}


def _docker(spec: ClusterSpec, part: RayUpPart) -> dict[str, Any]:
    if spec.storage.startswith("/"):
        _demand_mount(spec, part, spec.storage, "storage")
    hardware = sorted({pool.hardware for pool in spec.pools.values()})
    options = [option for name in hardware for option in DEVICE_OPTIONS[name]]
    return {
        "image": spec.image,
        "container_name": "rayscribe",
        "pull_before_run": True,
        "run_options": ["--ulimit nofile=65536:65536", *options, *part.run_options],
    }


def _node_types(spec: ClusterSpec, part: RayUpPart) -> dict[str, Any]:
    found: dict[str, Any] = {}
    nodes: dict[str, HeadPart | PoolPart] = {HEAD: spec.head, **spec.pools}
    for name, node in nodes.items():
        if node.instance is None:
            raise ConfigError(f"{name if name == HEAD else f'pools.{name}'}.instance: missing; name an instance type")
        pool = node if isinstance(node, PoolPart) else None
        config = (
            aws_node(part, node.instance, pool)
            if isinstance(part, AwsPart)
            else gcp_node(_gcp(part), node.instance, pool)
        )
        found[name] = {
            "min_workers": pool.min if pool else 0,
            "max_workers": pool.max if pool else 0,
            "resources": resources_of(pool) if pool else {"CPU": spec.head.ray_cpus},
            "labels": _labels(name, pool),
            "node_config": config,
        }
    return found


def _gcp(part: RayUpPart) -> GcpPart:
    assert isinstance(part, GcpPart)
    return part


def _labels(name: str, pool: PoolPart | None) -> dict[str, str]:
    spot = {MARKET_TYPE: "spot" if pool.spot else "on-demand"} if pool else {}
    return {"pool": name, **spot, **(pool.labels if pool else {})}


def _brought(spec: ClusterSpec) -> dict[str, str]:
    """Files of this machine that hold secrets, by their places on the nodes."""
    files = {name: place.client_file for name, place in spec.secrets.items()}
    return {f"{SECRETS_FOLDER}/{name}": path for name, path in files.items() if path is not None}


def _secrets(spec: ClusterSpec, part: RayUpPart) -> dict[str, str]:
    """What gives the value of each secret on a node, in the words of the shell."""
    found = {}
    for name, place in spec.secrets.items():
        if place.client_file is not None:
            found[name] = f"$(cat {SECRETS_FOLDER}/{name})"
        elif place.file is not None:
            _demand_mount(spec, part, place.file, f"secrets.{name}.file")
            found[name] = f"$(cat {shlex.quote(place.file)})"
        else:
            raise ConfigError(
                f"secrets.{name}: `ray up` brings no variables and no Secrets to its nodes: give client_file, a file "
                "of this machine that it brings there, or file, one that each node has"
            )
    return found


def _demand_mount(spec: ClusterSpec, part: RayUpPart, path: str, field: str) -> None:
    """Refuses a path that no option of `docker run` mounts in the container, where there is one."""
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
    if isinstance(part, LocalPart):
        options |= {"node-ip-address": part.head_ip, "num-cpus": spec.head.ray_cpus, "num-gpus": 0}
        options["labels"] = _joined({"pool": HEAD})
    options["autoscaling-config"] = "~/ray_bootstrap_config.yaml"
    own = OWN_HOSTS_VARIABLES if isinstance(part, LocalPart) else growth_variables(spec)
    variables = assignments({**CLUSTER_VARIABLES, **STOP_VARIABLES, **own})
    return f"export {variables}; ulimit -n 65536; ray start --head {_options(options)}"


def _start_worker(spec: ClusterSpec, part: RayUpPart) -> str:
    options: dict[str, Any] = {"address": f"$RAY_HEAD_IP:{GCS_PORT}", **NODE_PORTS}
    if isinstance(part, LocalPart):
        ((name, pool),) = spec.pools.items()
        if "cpus" in pool.model_fields_set:
            options["num-cpus"] = pool.cpus
        if RESOURCE[pool.hardware] == "GPU":
            options["num-gpus"] = pool.accelerators
        elif pool.accelerators:
            options["resources"] = (
                f"'{json.dumps({RESOURCE[pool.hardware]: pool.accelerators}, separators=(',', ':'))}'"
            )
        options["labels"] = _joined({"pool": name, **pool.labels})
    start = f"ray start {_options(options)}"
    if isinstance(part, LocalPart):
        start = f"until {start}; do {START_AGAIN}; done"
    start = f"export {assignments(CLUSTER_VARIABLES)}; ulimit -n 65536; {start}"
    if not any(pool.spot for pool in spec.pools.values()):
        return start
    provider = f" --provider {part.provider}" if isinstance(part, AwsPart | GcpPart) else ""
    agent = f"{AGENT}{provider} {IN_BACKGROUND}"
    # Ray passes a node's labels in this variable, as JSON without spaces; one command serves all pools.
    return f"""{start} && case "$RAY_OVERRIDE_LABELS" in *'"{MARKET_TYPE}":"spot"'*) {agent} esac"""


def _joined(labels: dict[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in labels.items())


def _options(options: dict[str, Any]) -> str:
    return " ".join(f"--{name}={value}" for name, value in options.items())


def _head(spec: ClusterSpec, part: RayUpPart) -> str:
    if isinstance(part, LocalPart):
        gaudi = any(pool.hardware == "hpu" for pool in spec.pools.values())
        file, what = ("gaudi.yaml", "Own hosts with Gaudi accelerators") if gaudi else ("local.yaml", "Own hosts")
        what += ", reached over SSH."
    else:
        file = "aws.yaml" if isinstance(part, AwsPart) else "gcp.yaml"
        what = "AWS EC2" if isinstance(part, AwsPart) else "Google Compute Engine"
        what = f"{what}: a head on demand, and pools that grow from min to max: {', '.join(spec.pools)}."
    return (
        f"{what} Rendered by `rayscribe cluster render`; change the spec, and render it again.\n"
        f"  rayscribe cluster up {file}\n"
        f"  rayscribe submit {shlex.quote(spec.recipe)} --cluster {spec.name} "
        f"--set {shlex.quote(f'run.storage_path={spec.storage}')}\n"
    )


def _comments(spec: ClusterSpec, part: RayUpPart) -> dict[str, str]:
    found = {
        "idle_timeout_minutes": "Worker nodes without work go after this time; `rayscribe cluster up --idle-stop` ends "
        "the head, too.",
        "file_mounts": "Ray's token, which `rayscribe cluster up` makes once. Every node demands it of every caller."
        + (" The others hold secrets." if _brought(spec) else ""),
        "setup_commands": "On every node, before Ray starts. The last fails where versions differ from the client's.",
        "head_start_ray_commands": "The dashboard listens on loopback: `rayscribe cluster dashboard` forwards its "
        "port. A stopped job has the time to store a checkpoint.",
        "worker_start_ray_commands": f"Open between the nodes, and to nobody else: {GCS_PORT} and 10001 (head), "
        f"8076-8079, 52365 and 10002-19999; for Prometheus too: {METRICS_PORT}, and {HEAD_METRICS_PORTS} (head).",
    }
    if isinstance(part, LocalPart):
        found["head_start_ray_commands"] += " Ray's newer autoscaler would count the head as a worker."
        found["worker_start_ray_commands"] += " After one start that failed Ray's autoscaler would give a host up."
        found["provider"] = "Addresses by which the hosts reach each other. All of the workers join."
        return found | _docker_comment(spec)
    cpus = f"{spec.head.ray_cpus} CPUs take" if spec.head.ray_cpus else "it takes no"
    found["available_node_types/head"] = f"The jobs' drivers run here, never on spot; {cpus} other work."
    for name, pool in spec.pools.items():
        found[f"available_node_types/{name}"] = _about_pool(pool)
    return found | _docker_comment(spec)


def _docker_comment(spec: ClusterSpec) -> dict[str, str]:
    return (
        {"docker": "Built from cluster_configs/Dockerfile. Every node runs all its commands in it."}
        if spec.image
        else {}
    )


def _about_pool(pool: PoolPart) -> str:
    device = RESOURCE[pool.hardware]
    what = "For data: CPUs" if device == "CPU" else f"For training: {pool.accelerators} {device}s a node"
    if not pool.spot:
        return f"{what}; started when jobs ask for them."
    return (
        f"{what}, on spot: cheaper, and taken away at short notice. An agent then drains the node, and training goes "
        "on from the checkpoint that it takes before the end."
    )
