"""Reads files of `ray up`, and builds commands for their hosts. Pure."""

import copy
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cluster_configs.validation.shell_commands import RayStart, ray_starts_in
from trainers.errors import ConfigError

# Path at which Ray reads a token on every node.
TOKEN_ON_NODES = "~/.ray/auth_token"
DEFAULT_GCS_PORT = 6379
# `ray up` leaves this file on the head.
KEY = Path("~/ray_bootstrap_key.pem")
IDLE_STOP = "rayscribe.jobs.clusters.idle_stop"


def prepared(content: Mapping[str, Any], token: Path, idle_stop_minutes: int | None = None) -> dict[str, Any]:
    """Returns the config for `ray up`: the user's file, with this machine's token for every node and the idle stop.

    With `idle_stop_minutes`, the head ends the cluster after that time without jobs.
    """
    config: dict[str, Any] = copy.deepcopy(dict(content))
    config["file_mounts"] = {**(config.get("file_mounts") or {}), TOKEN_ON_NODES: str(token)}
    if idle_stop_minutes is not None:
        commands = config.get("head_start_ray_commands") or []
        config["head_start_ray_commands"] = [*commands, start_line(config, idle_stop_minutes)]
    return config


def name_of(content: Mapping[str, Any]) -> str:
    """Returns the name of the cluster in a file of `ray up`; raises ConfigError if it has none."""
    name = content.get("cluster_name")
    if not isinstance(name, str) or not isinstance(content.get("provider"), Mapping):
        raise ConfigError("the file has no cluster_name and provider: it is neither a file of `ray up` nor a spec")
    return name


def on_own_hosts(content: Mapping[str, Any]) -> bool:
    """Returns True if the nodes are own hosts, which keep running after Ray has ended."""
    return bool(content["provider"]["type"] == "local")


def min_workers(content: Mapping[str, Any]) -> int:
    """Returns the minimum number of workers, over all node types except the head's; for own hosts, all by default."""
    hosts = content["provider"].get("worker_ips") or []
    if hosts or "min_workers" in content:
        return int(content.get("min_workers", len(hosts)))
    head, kinds = content.get("head_node_type"), content.get("available_node_types") or {}
    return sum(int(kind.get("min_workers") or 0) for name, kind in kinds.items() if name != head)


def gcs_port(content: Mapping[str, Any]) -> int:
    """Returns the port at which drivers and nodes join, from the head's start command or Ray's default."""
    start = _start_of_head(content)
    port = start.options.get("--port", "") if start is not None else ""
    return int(port) if port.isdecimal() else DEFAULT_GCS_PORT


def listens_line(port: int) -> str:
    """Returns a command that exits with 0 if a process on its host listens on a port, otherwise with 1."""
    return f"cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | grep -qE ':{port:04X} [0-9A-F]+:0000 0A '"


def stop_line(config: Mapping[str, Any]) -> str:
    """Returns the `ray stop` command of the head in a cluster file; `ray stop` if it has none."""
    return next((line for line in config.get("head_start_ray_commands") or [] if "ray stop" in line), "ray stop")


def environment_of(config: Mapping[str, Any]) -> str:
    """Returns the exports in the head's start commands before `ray start`, e.g. `export PATH="…:$PATH"; `."""
    start = _start_of_head(config)
    variables = start.environment if start is not None else {}
    return "".join(f"export {name}={_in_shell(value)}; " for name, value in variables.items())


def _start_of_head(config: Mapping[str, Any]) -> RayStart | None:
    commands = config.get("head_start_ray_commands") or []
    return next((start for command in commands for start in ray_starts_in(command, {}) if start.head), None)


def _in_shell(value: str) -> str:
    """Quotes a value for a shell, which still expands variables in the value."""
    escaped = value.replace("\\", r"\\").replace('"', r"\"").replace("`", r"\`")
    return value if value == shlex.quote(value) else f'"{escaped}"'


def start_line(config: Mapping[str, Any], minutes: int) -> str:
    """Returns the command that starts the idle watch on the head and ends any earlier one."""
    watch = f"nohup python -m {IDLE_STOP} --minutes {minutes} --cluster {shlex.quote(config['cluster_name'])}"
    return f"{environment_of(config)}{watch} >~/.rayscribe-idle-stop.log 2>&1 </dev/null &"


def stop_commands(config: Mapping[str, Any]) -> list[list[str]]:
    """Returns the commands that stop Ray on own hosts; the head is the last."""
    stop, auth = stop_line(config), config["auth"]
    container = (config.get("docker") or {}).get("container_name")
    options = ["-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"]
    ssh = ["ssh", *options, "-o", "ConnectTimeout=20", "-i", str(KEY.expanduser())]
    on_worker = shlex.join(login_shell(f"docker stop {container}" if container else stop))
    hosts = config["provider"].get("worker_ips") or []
    return [*([*ssh, f"{auth['ssh_user']}@{host}", on_worker] for host in hosts), login_shell(stop)]


def login_shell(command: str) -> list[str]:
    """Returns the command line of a shell with the same variables as in `ray up`."""
    return ["bash", "--login", "-c", "-i", f"source ~/.bashrc; {command}"]


def shell_for_head(config: Mapping[str, Any]) -> list[str]:
    """Returns the command line of a shell that stops Ray on the head like `ray up`, and ends an idle watch there."""
    watch = f"{environment_of(config)}python -m {IDLE_STOP} --minutes 0 --cluster {shlex.quote(config['cluster_name'])}"
    return login_shell(f"({stop_line(config)}); code=$?; ({watch}); exit $code")
