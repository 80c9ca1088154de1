"""Runs Ray's own cluster commands, with an environment, output and timeout; finds a cluster's head.

The commands take minutes, so their output goes to a file, and lines of progress are shown.
"""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from threading import Timer
from typing import Any

from jobs.clusters.managed.cluster_record import ClusterRecord, RayUpRecord, SshTarget, write_private
from jobs.clusters.managed.ssh_tunnel import in_quotes
from jobs.errors import ClusterError
from trainers.distributed.local_ray import without_ray_settings
from trainers.distributed.machine import make_private_folder

# Runs in a separate process, since a cloud may not respond, and Ray prints messages and takes seconds to import.
ASK = """
import json, sys, yaml
from ray.autoscaler.sdk import bootstrap_config, get_head_node_ip
with open(sys.argv[1]) as file:
    auth = bootstrap_config(yaml.safe_load(file))["auth"]
print(json.dumps({"auth": auth, "host": get_head_node_ip(sys.argv[1])}))
"""
ASK_TIMEOUT_S = 90.0
ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# Prefix of Ray's log records: time, level, file and line.
PREFIX = re.compile(r"^\d{4}-\d\d-\d\d [\d:,]+\s+\w+ \S+:\d+ -- ")
PROGRESS = re.compile(
    r"^(\[\d+/\d+\]|Launched|Acquiring|Fetched IP|Received|New status|Terminated|Requested \d+|\d+ nodes remaining|"
    r"Updating cluster|SSH still not|`.*` failed)"
)
PROBLEM = re.compile(
    r"error|fail|denied|refused|timed out|time-?out|not found|no such|cannot|could not|unable|exception|quota|!!!",
    re.IGNORECASE,
)
SHOWN_LINES = 8
# A repeated line of progress is shown again after this time. Seconds.
REPEAT_S = 30.0


class NoHeadError(ClusterError):
    """The cluster has no head: it was not started, or its machine was terminated."""


def ray_environment(record: ClusterRecord) -> dict[str, str]:
    """Returns the environment of Ray's own commands for a cluster.

    In a folder for temporary files, Ray keeps its state of own hosts, under the cluster's name only, and the config
    that it has made from a file of `ray up`, with SSH commands, under the file's hash. In /tmp, both would belong to
    the first user of this machine, so each cluster has its own folder.

    Ray calls ssh and rsync, and accepts any host key. It finds our `ssh` script first, which uses the cluster's own
    known_hosts file, so that a head whose key has changed gets neither files nor the token. The script also disables
    Ray's shared connections, since their sockets are in a folder of /tmp that any user can create first.
    """
    make_private_folder(record.temporary_files)
    environment = without_ray_settings()
    path = environment.get("PATH", os.defpath)
    ssh = shutil.which("ssh", path=path)
    if ssh is not None:
        folder = record.files / "bin"
        write_private(folder / "ssh", _ssh_script(ssh, record.known_hosts_path))
        (folder / "ssh").chmod(0o700)
        path = f"{folder}{os.pathsep}{path}"
    return {
        **environment,
        "PATH": path,
        "RAY_TMPDIR": str(record.files),
        "TMPDIR": str(record.temporary_files),
    }


def _ssh_script(ssh: str, known_hosts: Path) -> str:
    # If an option is given twice, ssh uses the first.
    options = ("StrictHostKeyChecking=accept-new", f"UserKnownHostsFile={in_quotes(known_hosts)}", "ControlPath=none")
    return f'#!/bin/sh\nexec {shlex.join([ssh, *(part for each in options for part in ("-o", each))])} "$@"\n'


def head_of(record: RayUpRecord) -> SshTarget:
    """Returns SSH access to the head; on a cloud, its address and key are known once it was started.

    Raises:
        NoHeadError: the cluster has no head.
        ClusterError: the head cannot be determined.
    """
    command = [sys.executable, "-P", "-c", ASK, str(record.config_path)]
    try:
        asked = subprocess.run(
            command,
            env=ray_environment(record),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=ASK_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ClusterError(f"the head of {record.name} is not known: no answer in {ASK_TIMEOUT_S:.0f} s") from error
    if asked.returncode != 0:
        reason = (asked.stderr.strip() or asked.stdout.strip()).rpartition("\n")[2]
        kind = NoHeadError if "Head node" in reason and "not found" in reason else ClusterError
        raise kind(f"the head of {record.name} is not known: {reason}")
    found: dict[str, Any] = json.loads(asked.stdout.splitlines()[-1])
    return ssh_target(found["auth"], found["host"])


def ssh_target(auth: Mapping[str, Any], host: str) -> SshTarget:
    """Returns SSH access to a host, from the `auth` part of a `ray up` file. Pure."""
    return SshTarget(
        host=host,
        user=auth["ssh_user"],
        private_key=auth.get("ssh_private_key"),
        proxy_command=auth.get("ssh_proxy_command"),
    )


def run_logged(
    command: Sequence[str],
    log: Path,
    *,
    environment: Mapping[str, str],
    timeout_s: float,
    say: Callable[[str], None],
    doing: str,
) -> None:
    """Runs a command for at most `timeout_s`; writes its output to a file, and shows lines of progress.

    Raises:
        ClusterError: the command failed or timed out; the message has the relevant lines of its output.
    """
    make_private_folder(log.parent)
    start_s, lines = time.monotonic(), list[str]()
    process = subprocess.Popen(
        command,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    timer = Timer(timeout_s, _end, [process])
    timer.start()
    try:
        with log.open("w", encoding="utf-8") as file:
            for line in _read(process, start_s, say):
                file.write(f"{line}\n")
                file.flush()
                lines.append(line)
        code = process.wait()
    finally:
        timer.cancel()
        _end(process)
        process.communicate()
    if code != 0:
        late = time.monotonic() - start_s >= timeout_s
        how = f"took longer than {timeout_s:.0f} s" if late else f"failed (exit code {code})"
        raise ClusterError(f"{doing} {how}:\n" + "\n".join(telling(lines)) + f"\nfull log: {log}")


def _read(process: "subprocess.Popen[bytes]", start_s: float, say: Callable[[str], None]) -> Iterator[str]:
    """Yields the lines of the process's output; shows lines of progress."""
    assert process.stdout is not None
    last, shown_s = "", start_s
    for raw in process.stdout:
        line = plain(raw.decode(errors="replace"))
        text = line.strip()
        now_s = time.monotonic()
        if PROGRESS.match(text) and (text != last or now_s - shown_s >= REPEAT_S):
            say(f"{now_s - start_s:4.0f} s  {text}")
            last, shown_s = text, now_s
        yield line


def plain(text: str) -> str:
    """Returns a line without colors and the prefix of Ray's log records."""
    return PREFIX.sub("", ANSI.sub("", text).replace("\r", "").rstrip())


def telling(lines: Sequence[str]) -> list[str]:
    """Returns the last lines that look like errors; if there are none, the last lines."""
    there = [line for line in lines if line.strip()]
    return ([line for line in there if PROBLEM.search(line)] or there)[-SHOWN_LINES:]


def _end(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
