"""What Ray's own cluster commands are given, and what they know of a head."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jobs.clusters.managed.cluster_record import ClusterRecord, RayUpRecord, SshTarget, write_private
from jobs.clusters.managed.ssh_tunnel import in_quotes
from jobs.errors import ClusterError
from trainers.distributed.local_ray import without_ray_settings
from trainers.distributed.machine import make_private_folder

# In a process of its own: a cloud may not respond, Ray prints what it does, and takes seconds to import.
ASK = """
import json, sys, yaml
from ray.autoscaler.sdk import bootstrap_config, get_head_node_ip
with open(sys.argv[1]) as file:
    auth = bootstrap_config(yaml.safe_load(file))["auth"]
print(json.dumps({"auth": auth, "host": get_head_node_ip(sys.argv[1])}))
"""
ASK_TIMEOUT_S = 90.0


class NoHeadError(ClusterError):
    """The cluster has no head: it was not started, or its machine was taken away."""


def ray_environment(record: ClusterRecord) -> dict[str, str]:
    """The variables of Ray's own commands for a cluster.

    What Ray remembers of own hosts is in a folder of temporary files by the cluster's name alone, and what it takes a
    file of `ray up` for, commands of SSH among it, in one by the file's content. In /tmp both belong to whoever was
    first on this machine; here each cluster has a folder.

    Ray calls ssh and rsync, and takes any key of any host. The `ssh` that it finds first is ours, which has the
    cluster's own file of known hosts: a head whose key has changed gets neither files nor the token. Nor does it use
    Ray's open connections, whose sockets are in a folder of /tmp that anybody can make first.
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
    # Of an option that is given twice, ssh takes the first.
    options = ("StrictHostKeyChecking=accept-new", f"UserKnownHostsFile={in_quotes(known_hosts)}", "ControlPath=none")
    return f'#!/bin/sh\nexec {shlex.join([ssh, *(part for each in options for part in ("-o", each))])} "$@"\n'


def head_of(record: RayUpRecord) -> SshTarget:
    """How the head is reached: on a cloud, address and key are known once it was started.

    Raises:
        NoHeadError: there is none.
        ClusterError: it cannot be found out.
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
    """How a host is reached, with what a file of `ray up` says of SSH. Pure."""
    return SshTarget(
        host=host,
        user=auth["ssh_user"],
        private_key=auth.get("ssh_private_key"),
        proxy_command=auth.get("ssh_proxy_command"),
    )
