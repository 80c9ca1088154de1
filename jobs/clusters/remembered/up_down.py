"""Clusters of own hosts and clouds: what `ray up` is given, and what is done around it and `ray down`."""

import contextlib
import copy
import re
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from jobs.addresses import cluster_address
from jobs.clusters.idle_stop import counted, login_shell, shell_for_head, start_line, stop_line
from jobs.clusters.ray_jobs import RayJobs
from jobs.clusters.remembered.cluster_lock import at_work_on
from jobs.clusters.remembered.cluster_record import ClusterRecord, SshTarget, ensure_token, find_record, write_private
from jobs.clusters.remembered.first_login import check_key, check_login
from jobs.clusters.remembered.logged_command import run_logged
from jobs.clusters.remembered.ray_launcher import NoHeadError, head_of, ray_environment, ssh_target
from jobs.clusters.remembered.ssh_tunnel import run_over_ssh, ssh_command
from jobs.errors import ClusterError, ConflictError
from trainers.distributed.local_ray import ray_command
from trainers.errors import ConfigError

Say = Callable[[str], None]

# Where Ray looks for a token on every node.
TOKEN_ON_NODES = "~/.ray/auth_token"
POLL_S = 2.0
DOWN_TIMEOUT_S, STOP_TIMEOUT_S = 900.0, 90.0
# The worker nodes of an own host's cluster.
HEAD_ALONE = 1
DEFAULT_GCS_PORT = 6379


def prepared(content: Mapping[str, Any], token: Path, idle_stop_minutes: int | None = None) -> dict[str, Any]:
    """What `ray up` is given: the user's file, with the token of this machine, and the head's idle stop. Pure.

    Args:
        content: The file.
        token: The file that every node gets as its token.
        idle_stop_minutes: Minutes without jobs after which the head ends the cluster. None: it stays.
    """
    config: dict[str, Any] = copy.deepcopy(dict(content))
    config["file_mounts"] = {**(config.get("file_mounts") or {}), TOKEN_ON_NODES: str(token)}
    if idle_stop_minutes is not None:
        commands = config.get("head_start_ray_commands") or []
        config["head_start_ray_commands"] = [*commands, start_line(config, idle_stop_minutes)]
    return config


def name_of(content: Mapping[str, Any]) -> str:
    """The name of the cluster in a file of `ray up`.

    Raises:
        ConfigError: it has none.
    """
    name = content.get("cluster_name")
    if not isinstance(name, str) or not isinstance(content.get("provider"), Mapping):
        raise ConfigError("the file has no cluster_name and provider: it is neither a file of `ray up` nor a spec")
    return name


def up(
    content: Mapping[str, Any],
    *,
    idle_stop_minutes: int | None,
    timeout_s: float,
    say: Say,
    now_s: float,
    restart: bool = False,
) -> ClusterRecord:
    """Starts a cluster, or continues a start that failed; one that is up is brought to what the file says.

    Args:
        content: A file of `ray up`.
        idle_stop_minutes: Minutes without jobs after which the head ends the cluster. None: as it was started.
        timeout_s: Limit of `ray up`, and then of waiting for its nodes. Seconds.
        say: Shows a line of progress.
        now_s: The time.
        restart: Whether Ray is started anew on a head on which it runs, and its jobs are lost.

    Raises:
        ClusterError: it did not come up, with the lines that say why; or its head cannot be asked.
        ConfigError: the file is none of `ray up`, or its SSH key is not here.
        ConflictError: a Ray of this machine has the name, or another command is at work on it.
    """
    name = name_of(content)
    check_key(content)
    with at_work_on(name):
        before = find_record(name)
        if before is not None and before.kind == "local":
            raise ConflictError(
                f"a Ray of this machine has the name {name}: end it first (rayscribe cluster down {name})"
            )
        record = before or ClusterRecord(
            name=name, kind="ray-up", created_s=now_s, provider=content["provider"]["type"]
        )
        runs = not restart and head_runs(record)
        minutes = idle_stop_minutes if idle_stop_minutes is not None else record.idle_stop_minutes
        record = record.model_copy(update={"idle_stop_minutes": minutes})
        record = _bring_up(record, content, runs=runs, timeout_s=timeout_s, say=say)
        if runs and minutes is not None:
            # Ray's start commands, in which it is otherwise, were not run.
            command = ["exec", str(record.config_path), start_line(content, minutes), "--no-config-cache"]
            _ray(record, command, "idle-stop.log", timeout_s=STOP_TIMEOUT_S, say=say, doing="starting its idle stop")
        if minutes is not None and idle_stop_minutes is None:
            say(f"it ends after {counted(minutes, 'minute')} without jobs, as before; --idle-stop changes that")
        _wait_for_nodes(record, min_workers(content), timeout_s=timeout_s, say=say)
        record = record.model_copy(update={"state": "up"})
        record.write()
        return record


def _bring_up(
    record: ClusterRecord, content: Mapping[str, Any], *, runs: bool, timeout_s: float, say: Say
) -> ClusterRecord:
    """Calls `ray up`, unless the cluster runs as the file says; gives the cluster with its head."""
    if record.ssh is None:
        check_login(content)
    text = yaml.safe_dump(prepared(content, ensure_token(record.name), record.idle_stop_minutes), sort_keys=False)
    unchanged = record.config_path.exists() and record.config_path.read_text(encoding="utf-8") == text
    # Remembered before anything is started, so that `down` finds what a failed start leaves.
    write_private(record.config_path, text)
    record.write()
    if runs and unchanged:
        return record
    arguments = ["up", str(record.config_path), "--yes", "--no-config-cache", "--disable-usage-stats"]
    # Otherwise Ray is started anew, and jobs are lost.
    arguments += ["--no-restart"] if runs else []
    _ray(record, arguments, "up.log", timeout_s=timeout_s, say=say, doing=f"starting {record.name}")
    head = head_of(record)
    if record.ssh is not None and record.ssh.host != head.host:
        record.known_hosts_path.unlink(missing_ok=True)
    record = record.model_copy(update={"ssh": head})
    record.write()
    return record


def head_runs(record: ClusterRecord) -> bool:
    """Whether Ray runs on the cluster's head, so that a new start would end its jobs.

    Raises:
        ClusterError: the head is there, and cannot be asked.
    """
    if record.ssh is None:
        return False  # nobody could have submitted a job
    if responds(record):
        return True
    try:
        head = head_of(record)
    except NoHeadError:
        # The next one has another key.
        record.known_hosts_path.unlink(missing_ok=True)
        return False
    if head.host != record.ssh.host:
        record.known_hosts_path.unlink(missing_ok=True)
    return _ray_listens(record, head)


def _ray_listens(record: ClusterRecord, head: SshTarget) -> bool:
    """Whether Ray's port is open on the head."""
    content = yaml.safe_load(record.config_path.read_text(encoding="utf-8"))
    line = listens_line(gcs_port(content))
    code, message = run_over_ssh(head, record.known_hosts_path, line, timeout_s=STOP_TIMEOUT_S)
    if code not in (0, 1):
        raise ClusterError(
            f"the head of {record.name}, {head.host}, cannot be asked whether Ray and jobs run there ({message}): "
            "repeat the command when it responds, or use --restart, with which its jobs are lost"
        )
    return code == 0


def has_ended(record: ClusterRecord) -> bool:
    """Whether it is known that no Ray runs on the head of a cluster of `ray up`, as after an idle stop. Only asks."""
    if record.kind != "ray-up" or record.ssh is None:
        return False
    try:
        head = head_of(record)
        return head.host == record.ssh.host and not _ray_listens(record, head)
    except NoHeadError:
        return True
    except ClusterError:
        return False


def gcs_port(content: Mapping[str, Any]) -> int:
    """The port that drivers and nodes join, as the head's start command has it. Pure."""
    commands = " ".join(content.get("head_start_ray_commands") or [])
    found = re.search(r"\s--port[= ](\d+)", commands)
    return int(found[1]) if found else DEFAULT_GCS_PORT


def listens_line(port: int) -> str:
    """A command that ends with 0 where something listens at a port of its host, and with 1 otherwise. Pure."""
    return f"cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | grep -qE ':{port:04X} [0-9A-F]+:0000 0A '"


def attach_command(record: ClusterRecord, command: str | None, *, terminal: bool) -> list[str]:
    """The command line of a shell on the head, in its container where it has one, or of a command there.

    Args:
        record: The cluster; its head is known.
        command: What the shell runs. None: what is typed.
        terminal: Whether somebody sees it in a terminal.
    """
    path = record.config_path
    if yaml.safe_load(path.read_text(encoding="utf-8")).get("docker"):
        return ray_command("attach", str(path)) if command is None else ray_command("exec", str(path), command)
    assert record.ssh is not None
    there = [] if command is None else [shlex.join(login_shell(command))]
    return [*ssh_command(record.ssh, record.known_hosts_path), *(["-t"] if terminal else []), *there]


def responds(record: ClusterRecord) -> bool:
    """Whether the cluster's dashboard responds to its token."""
    try:
        RayJobs(cluster_address(record.name)).capacity({})
    except ClusterError:
        return False
    return True


def down(record: ClusterRecord, *, say: Say, force: bool = False) -> None:
    """Ends all nodes. On own hosts, where nobody takes the machines away, Ray is stopped on each.

    Args:
        record: The cluster.
        say: Shows a line of progress.
        force: Whether it is also forgotten where Ray could not be stopped on some hosts, as on one that is gone.

    Raises:
        ClusterError: something may still run; the cluster stays remembered, and the call may be repeated.
    """
    content: dict[str, Any] = yaml.safe_load(record.config_path.read_text(encoding="utf-8"))
    left = []
    # In a container Ray ends with it, and `ray down` ends that.
    if record.provider == "local" and not content.get("docker"):
        if record.ssh is None:
            with contextlib.suppress(ClusterError):
                record = record.model_copy(update={"ssh": head_of(record)})
        left = [host for host in _stop_hosts(record, content) if host is not None]
    doing = f"ending {record.name}"
    _ray(record, ["down", str(record.config_path), "--yes"], "down.log", timeout_s=DOWN_TIMEOUT_S, say=say, doing=doing)
    if left:
        text = f"Ray could not be stopped on {'; '.join(left)}"
        if not force:
            raise ClusterError(f"{text}: repeat `rayscribe cluster down`, with --force where they are gone")
        say(f"{text}; the cluster is forgotten all the same")
    record.forget(taken_down=not left)


def _stop_hosts(record: ClusterRecord, content: Mapping[str, Any]) -> Iterator[str | None]:
    """Stops Ray on each host, workers first, since the head starts them again; yields those where that failed."""
    provider = content["provider"]
    for host in provider.get("worker_ips") or []:
        yield _stop_host(record, content, host, login_shell(stop_line(content)))
    yield _stop_host(record, content, provider["head_ip"], shell_for_head(content))


def _stop_host(record: ClusterRecord, content: Mapping[str, Any], host: str, shell: list[str]) -> str | None:
    target = ssh_target(content["auth"], host)
    command = [*ssh_command(target, record.known_hosts_path), shlex.join(shell)]
    if record.ssh is not None and host != content["provider"]["head_ip"]:
        # As the head reaches it; from here it may be out of reach.
        through = shlex.join([*ssh_command(record.ssh, record.known_hosts_path), "-W", "%h:%p"])
        proxied = target.model_copy(update={"proxy_command": through})
        command = [*ssh_command(proxied, record.known_hosts_path), command[-1]]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=STOP_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"{host} (no answer in {STOP_TIMEOUT_S:.0f} s)"
    if done.returncode == 0:
        return None
    return f"{host} ({(done.stderr or done.stdout).strip().splitlines()[-1:] or ['no message']})"


def _ray(record: ClusterRecord, arguments: list[str], log: str, *, timeout_s: float, say: Say, doing: str) -> None:
    run_logged(
        ray_command(*arguments, "--log-style=record", "--log-color=false"),
        record.files / log,
        environment=ray_environment(record),
        timeout_s=timeout_s,
        say=say,
        doing=doing,
    )


def min_workers(content: Mapping[str, Any]) -> int:
    """Workers that are always there: over all node types but the head's, and of own hosts all, as Ray has it. Pure."""
    hosts = content["provider"].get("worker_ips") or []
    if hosts or "min_workers" in content:
        return int(content.get("min_workers", len(hosts)))
    head, kinds = content.get("head_node_type"), content.get("available_node_types") or {}
    return sum(int(kind.get("min_workers") or 0) for name, kind in kinds.items() if name != head)


def _wait_for_nodes(record: ClusterRecord, workers: int, *, timeout_s: float, say: Say) -> None:
    """Waits until the dashboard responds and the nodes that are always there have joined."""
    start_s, seen, problem = time.monotonic(), -1, "no response yet"
    while time.monotonic() - start_s < timeout_s:
        try:
            nodes = len(RayJobs(cluster_address(record.name)).capacity({}).nodes)
        except ClusterError as error:
            problem = str(error)
        else:
            if nodes != seen:
                say(f"{time.monotonic() - start_s:4.0f} s  {nodes - HEAD_ALONE} of {workers} workers have joined")
                seen, problem = nodes, f"{nodes - HEAD_ALONE} of {workers} workers have joined"
            if nodes >= workers + HEAD_ALONE:
                return
        time.sleep(POLL_S)
    raise ClusterError(
        f"{record.name} has not come up in {timeout_s:.0f} s: {problem}\n{autoscaler_lines(record)}"
        f"repeat the command to wait on, or end it: rayscribe cluster down {record.name}"
    )


def autoscaler_lines(record: ClusterRecord) -> str:
    """What the head's autoscaler says of nodes that do not come up; empty where it cannot be asked."""
    if record.ssh is None:
        return ""
    command = "tail -n 200 /tmp/ray/session_latest/logs/monitor.* | grep -iE 'error|fail|denied|timed out' | tail -n 8"
    with contextlib.suppress(subprocess.SubprocessError, OSError):
        done = subprocess.run(
            [*ssh_command(record.ssh, record.known_hosts_path), command],
            capture_output=True,
            text=True,
            timeout=STOP_TIMEOUT_S,
            check=False,
        )
        if done.stdout.strip():
            return f"its autoscaler says:\n{done.stdout}"
    return ""
