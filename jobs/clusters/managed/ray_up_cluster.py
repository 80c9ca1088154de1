"""Clusters of own hosts and clouds: the steps around `ray up` and `ray down`."""

import contextlib
import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from jobs.addresses import cluster_address
from jobs.clusters.managed.cluster_record import (
    LocalRecord,
    RayUpRecord,
    SshTarget,
    ensure_token,
    find_record,
    lock_cluster,
    write_private,
)  # fmt: skip
from jobs.clusters.managed.ray_launcher import NoHeadError, head_of, ray_environment, run_logged, ssh_target
from jobs.clusters.managed.ray_up_content import (
    gcs_port,
    listens_line,
    login_shell,
    min_workers,
    name_of,
    on_own_hosts,
    prepared,
    shell_for_head,
    start_line,
    stop_line,
)  # fmt: skip
from jobs.clusters.managed.ssh_tunnel import (
    LOGIN_TIMEOUT_S,
    changed_text,
    check_host_key,
    key_changed,
    run_over_ssh,
    ssh_command,
)
from jobs.clusters.ray_jobs import RayJobs
from jobs.errors import ClusterError, ConflictError
from trainers.config.storage_location import in_home
from trainers.config.wording import counted
from trainers.distributed.local_ray import ray_command
from trainers.errors import ConfigError

Say = Callable[[str], None]

POLL_S = 2.0
DOWN_TIMEOUT_S, STOP_TIMEOUT_S = 900.0, 90.0
# Number of living nodes if no worker node has joined.
HEAD_ALONE = 1


def has_ended(record: RayUpRecord) -> bool:
    """Returns True if the cluster's head no longer exists or does not run Ray, e.g. after an idle stop."""
    if record.state != "up" or record.ssh is None:
        return False
    try:
        head = head_of(record)
        return head.host == record.ssh.host and not _ray_listens(record, head)
    except NoHeadError:
        return True
    except ClusterError:
        return False


def down(record: RayUpRecord, *, say: Say, force: bool = False) -> None:
    """Ends all nodes; on own hosts, which keep running, stops Ray. See `managed_cluster.down`."""
    content: dict[str, Any] = yaml.safe_load(record.config_path.read_text(encoding="utf-8"))
    left = []
    # In a container, Ray ends with the container, which `ray down` ends.
    if on_own_hosts(content) and not content.get("docker"):
        if record.ssh is None:
            with contextlib.suppress(ClusterError):
                record = record.model_copy(update={"ssh": head_of(record)})
        left = [host for host in _stop_hosts(record, content) if host is not None]
    arguments = ["down", str(record.config_path), "--yes"]
    _ray(record, arguments, "down.log", timeout_s=DOWN_TIMEOUT_S, say=say, doing=f"ending {record.name}")
    if left:
        text = f"Ray could not be stopped on {'; '.join(left)}"
        if not force:
            raise ClusterError(f"{text}: repeat `rayscribe cluster down`, with --force if they no longer exist")
        say(f"{text}; its local record is removed anyway")
    record.forget(taken_down=not left)


def attach_command(record: RayUpRecord, command: str | None, *, terminal: bool) -> list[str]:
    """Returns the command line of a shell or a command on the head, in its container if it has one.

    With `terminal`, ssh requests a terminal.
    """
    path = record.config_path
    if yaml.safe_load(path.read_text(encoding="utf-8")).get("docker"):
        return ray_command("attach", str(path)) if command is None else ray_command("exec", str(path), command)
    assert record.ssh is not None
    there = [] if command is None else [shlex.join(login_shell(command))]
    return [*ssh_command(record.ssh, record.known_hosts_path), *(["-t"] if terminal else []), *there]


def up(
    content: Mapping[str, Any],
    *,
    idle_stop_minutes: int | None,
    timeout_s: float,
    say: Say,
    now_s: float,
    restart: bool = False,
) -> RayUpRecord:
    """Starts a cluster, continues a failed start, or updates a running cluster to the file.

    The timeout applies to `ray up`, and again to waiting for its nodes. Without `idle_stop_minutes`, the idle stop does
    not change; with `restart`, Ray is restarted if it runs, and its jobs are lost.

    Raises:
        ClusterError: the cluster did not start (the message has relevant output), or its head does not respond.
        ConfigError: the content is not a file of `ray up`, or its SSH key is not on this machine.
        ConflictError: a local cluster has the name, or another command starts or ends this cluster.
    """
    name = name_of(content)
    key = (content.get("auth") or {}).get("ssh_private_key")
    if key is not None and not in_home(str(key)).is_file():
        raise ConfigError(
            f"auth.ssh_private_key (ray_up.private_key of a spec): there is no file {key}; name the key that logs in "
            "to the hosts, or leave it out for those that ssh finds by itself"
        )
    with lock_cluster(name):
        before = find_record(name)
        if isinstance(before, LocalRecord):
            raise ConflictError(f"a local cluster has the name {name}: end it first (rayscribe cluster down {name})")
        record = before or RayUpRecord(name=name, created_s=now_s)
        runs = head_runs(record, restart=restart)
        minutes = idle_stop_minutes if idle_stop_minutes is not None else record.idle_stop_minutes
        record = record.model_copy(update={"idle_stop_minutes": minutes})
        record = _bring_up(record, content, runs=runs, timeout_s=timeout_s, say=say)
        if runs and minutes is not None:
            # The idle watch is started by Ray's start commands, which did not run.
            command = ["exec", str(record.config_path), start_line(content, minutes), "--no-config-cache"]
            _ray(record, command, "idle-stop.log", timeout_s=STOP_TIMEOUT_S, say=say, doing="starting its idle stop")
        if minutes is not None and idle_stop_minutes is None:
            say(f"it ends after {counted(minutes, 'minute')} without jobs, as before; --idle-stop changes that")
        _wait_for_nodes(record, min_workers(content), timeout_s=timeout_s, say=say)
        record = record.model_copy(update={"state": "up"})
        record.write()
        return record


def check_login(content: Mapping[str, Any]) -> None:
    """Logs in to the head of own hosts; does nothing on a cloud, where the head does not exist before `ray up`.

    Raises:
        ClusterError: the head does not respond, or refuses the user; the message has ssh's output and a test command.
    """
    host = content["provider"].get("head_ip")
    if not on_own_hosts(content) or host is None:
        return
    target = ssh_target(content["auth"], str(host))
    # Without known hosts, since the key is checked once the address is recorded.
    login = run_over_ssh(target, Path(os.devnull), "true", timeout_s=LOGIN_TIMEOUT_S)
    if login.returncode != 0:
        output = login.stderr.strip() or f"exit code {login.returncode}"
        key = f" -i {target.private_key}" if target.private_key is not None else ""
        raise ClusterError(
            f"{target.user} cannot log in to the head, {host} ({output}): nothing was started; "
            f"try `ssh{key} {target.user}@{host}`, and see provider.head_ip, auth.ssh_user and auth.ssh_private_key "
            "(ray_up.head_ip, user and private_key of a spec)"
        )


def _bring_up(
    record: RayUpRecord, content: Mapping[str, Any], *, runs: bool, timeout_s: float, say: Say
) -> RayUpRecord:
    """Runs `ray up`, unless the cluster runs with the same file; returns the record with the head."""
    if record.ssh is None:
        check_login(content)
        # Left by a failed start, in which no head was trusted yet.
        record.known_hosts_path.unlink(missing_ok=True)
    text = yaml.safe_dump(prepared(content, ensure_token(record.name), record.idle_stop_minutes), sort_keys=False)
    unchanged = record.config_path.exists() and record.config_path.read_text(encoding="utf-8") == text
    # Recorded before anything is started, so that `down` finds the remains of a failed start.
    write_private(record.config_path, text)
    record.write()
    if runs and unchanged:
        return record
    arguments = ["up", str(record.config_path), "--yes", "--no-config-cache", "--disable-usage-stats"]
    # Without this option Ray is restarted, and jobs are lost.
    arguments += ["--no-restart"] if runs else []
    _ray(record, arguments, "up.log", timeout_s=timeout_s, say=say, doing=f"starting {record.name}")
    record = record.model_copy(update={"ssh": head_of(record)})
    record.write()
    return record


def head_runs(record: RayUpRecord, *, restart: bool = False) -> bool:
    """Returns True if Ray runs on the cluster's head, so that a new start would end its jobs.

    With `restart`, jobs may be lost, so this only checks the head's key and returns False.

    Raises:
        ClusterError: the head exists but does not respond, or has another key.
    """
    if record.ssh is None:
        return False  # no job can have been submitted
    if not restart and responds(record):
        return True
    try:
        head = head_of(record)
    except NoHeadError:
        # The next head has another key.
        record.known_hosts_path.unlink(missing_ok=True)
        return False
    if head.host != record.ssh.host:
        record.known_hosts_path.unlink(missing_ok=True)
    if restart:
        check_host_key(record.model_copy(update={"ssh": head}))
        return False
    return _ray_listens(record, head)


def _ray_listens(record: RayUpRecord, head: SshTarget) -> bool:
    """Returns True if Ray's port is open on the head."""
    content = yaml.safe_load(record.config_path.read_text(encoding="utf-8"))
    asked = run_over_ssh(head, record.known_hosts_path, listens_line(gcs_port(content)), timeout_s=STOP_TIMEOUT_S)
    if key_changed(asked.stderr):
        raise ClusterError(changed_text(record.model_copy(update={"ssh": head})))
    if asked.returncode not in (0, 1):
        raise ClusterError(
            f"it is not known whether Ray runs on the head of {record.name}, {head.host} ({asked.stderr.strip()}): "
            "repeat the command when it responds, or use --restart, with which its jobs are lost"
        )
    return asked.returncode == 0


def responds(record: RayUpRecord) -> bool:
    """Returns True if the cluster's dashboard responds and accepts the token."""
    try:
        RayJobs(cluster_address(record.name)).capacity({})
    except ClusterError:
        return False
    return True


def _stop_hosts(record: RayUpRecord, content: Mapping[str, Any]) -> Iterator[str | None]:
    """Stops Ray on each host, workers first, since the head would restart them; yields None or the host that failed."""
    provider = content["provider"]
    for host in provider.get("worker_ips") or []:
        yield _stop_host(record, content, host, login_shell(stop_line(content)))
    yield _stop_host(record, content, provider["head_ip"], shell_for_head(content))


def _stop_host(record: RayUpRecord, content: Mapping[str, Any], host: str, shell: list[str]) -> str | None:
    target = ssh_target(content["auth"], host)
    if record.ssh is not None and host != content["provider"]["head_ip"]:
        # Through the head, since this machine may not be able to connect to workers.
        through = shlex.join(ssh_command(record.ssh, record.known_hosts_path)).replace("%", "%%") + " -W %h:%p"
        target = target.model_copy(update={"proxy_command": through})
    stopped = run_over_ssh(target, record.known_hosts_path, shlex.join(shell), timeout_s=STOP_TIMEOUT_S)
    lines = (stopped.stderr or stopped.stdout).strip().splitlines() or ["no message"]
    return None if stopped.returncode == 0 else f"{host} ({lines[-1]})"


def _ray(record: RayUpRecord, arguments: list[str], log: str, *, timeout_s: float, say: Say, doing: str) -> None:
    run_logged(
        ray_command(*arguments, "--log-style=record", "--log-color=false"),
        record.files / log,
        environment=ray_environment(record),
        timeout_s=timeout_s,
        say=say,
        doing=doing,
    )


def _wait_for_nodes(record: RayUpRecord, workers: int, *, timeout_s: float, say: Say) -> None:
    """Waits until the dashboard responds and the minimum number of workers has joined."""
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
        f"repeat the command to keep waiting, or end it: rayscribe cluster down {record.name}"
    )


def autoscaler_lines(record: RayUpRecord) -> str:
    """Returns lines with errors from the head's autoscaler log; "" if there are none, or it cannot be read."""
    if record.ssh is None:
        return ""
    command = "tail -n 200 /tmp/ray/session_latest/logs/monitor.* | grep -iE 'error|fail|denied|timed out' | tail -n 8"
    done = run_over_ssh(record.ssh, record.known_hosts_path, command, timeout_s=STOP_TIMEOUT_S)
    return f"its autoscaler says:\n{done.stdout}" if done.stdout.strip() else ""
