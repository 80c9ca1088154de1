"""What a file of `ray up` says, and the commands that follow from it for its hosts. Pure."""

import copy
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cluster_configs.validation.shell_commands import RayStart, ray_starts_in
from trainers.errors import ConfigError

# Where Ray looks for a token on every node.
TOKEN_ON_NODES = "~/.ray/auth_token"
DEFAULT_GCS_PORT = 6379
# What `ray up` leaves on the head.
KEY = Path("~/ray_bootstrap_key.pem")
IDLE_STOP = "rayscribe.jobs.clusters.idle_stop"


def prepared(content: Mapping[str, Any], token: Path, idle_stop_minutes: int | None = None) -> dict[str, Any]:
    """What `ray up` is given: the user's file, with the token of this machine for every node, and the head's idle stop.

    Without `idle_stop_minutes` the cluster stays; with them the head ends it after so long without jobs.
    """
    config: dict[str, Any] = copy.deepcopy(dict(content))
    config["file_mounts"] = {**(config.get("file_mounts") or {}), TOKEN_ON_NODES: str(token)}
    if idle_stop_minutes is not None:
        commands = config.get("head_start_ray_commands") or []
        config["head_start_ray_commands"] = [*commands, start_line(config, idle_stop_minutes)]
    return config


def name_of(content: Mapping[str, Any]) -> str:
    """The name of the cluster in a file of `ray up`; ConfigError where it has none."""
    name = content.get("cluster_name")
    if not isinstance(name, str) or not isinstance(content.get("provider"), Mapping):
        raise ConfigError("the file has no cluster_name and provider: it is neither a file of `ray up` nor a spec")
    return name


def on_own_hosts(content: Mapping[str, Any]) -> bool:
    """Whether its hosts stay when Ray has ended on them."""
    return bool(content["provider"]["type"] == "local")


def min_workers(content: Mapping[str, Any]) -> int:
    """Workers that are always there: over all node types but the head's, and of own hosts all, as Ray has it."""
    hosts = content["provider"].get("worker_ips") or []
    if hosts or "min_workers" in content:
        return int(content.get("min_workers", len(hosts)))
    head, kinds = content.get("head_node_type"), content.get("available_node_types") or {}
    return sum(int(kind.get("min_workers") or 0) for name, kind in kinds.items() if name != head)


def gcs_port(content: Mapping[str, Any]) -> int:
    """The port that drivers and nodes join, as the head's start command has it."""
    start = _start_of_head(content)
    port = start.options.get("--port", "") if start is not None else ""
    return int(port) if port.isdecimal() else DEFAULT_GCS_PORT


def listens_line(port: int) -> str:
    """A command that ends with 0 where something listens at a port of its host, and with 1 otherwise."""
    return f"cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | grep -qE ':{port:04X} [0-9A-F]+:0000 0A '"


def stop_line(config: Mapping[str, Any]) -> str:
    """The command that stops Ray on the head, as its file has it."""
    return next((line for line in config.get("head_start_ray_commands") or [] if "ray stop" in line), "ray stop")


def environment_of(config: Mapping[str, Any]) -> str:
    """What the head's start commands export before `ray start`, as `export PATH="…:$PATH"; `."""
    start = _start_of_head(config)
    variables = start.environment if start is not None else {}
    return "".join(f"export {name}={_in_shell(value)}; " for name, value in variables.items())


def _start_of_head(config: Mapping[str, Any]) -> RayStart | None:
    commands = config.get("head_start_ray_commands") or []
    return next((start for command in commands for start in ray_starts_in(command, {}) if start.head), None)


def _in_shell(value: str) -> str:
    """A value as a shell takes it, with the values of the variables that it names."""
    escaped = value.replace("\\", r"\\").replace('"', r"\"").replace("`", r"\`")
    return value if value == shlex.quote(value) else f'"{escaped}"'


def start_line(config: Mapping[str, Any], minutes: int) -> str:
    """The command that starts the watch on the head, and ends an earlier one."""
    watch = f"nohup python -m {IDLE_STOP} --minutes {minutes} --cluster {shlex.quote(config['cluster_name'])}"
    return f"{environment_of(config)}{watch} >~/.rayscribe-idle-stop.log 2>&1 </dev/null &"


def stop_commands(config: Mapping[str, Any]) -> list[list[str]]:
    """The commands that stop Ray on own hosts, the head's last."""
    stop, auth = stop_line(config), config["auth"]
    container = (config.get("docker") or {}).get("container_name")
    options = ["-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"]
    ssh = ["ssh", *options, "-o", "ConnectTimeout=20", "-i", str(KEY.expanduser())]
    on_worker = shlex.join(login_shell(f"docker stop {container}" if container else stop))
    hosts = config["provider"].get("worker_ips") or []
    return [*([*ssh, f"{auth['ssh_user']}@{host}", on_worker] for host in hosts), login_shell(stop)]


def login_shell(command: str) -> list[str]:
    """A shell with the variables of `ray up`'s own."""
    return ["bash", "--login", "-c", "-i", f"source ~/.bashrc; {command}"]


def shell_for_head(config: Mapping[str, Any]) -> list[str]:
    """The shell that stops Ray on the head, as `ray up` runs its commands; an idle stop that watches there ends too."""
    watch = f"{environment_of(config)}python -m {IDLE_STOP} --minutes 0 --cluster {shlex.quote(config['cluster_name'])}"
    return login_shell(f"({stop_line(config)}); code=$?; ({watch}); exit $code")
