"""What is found out before `ray up` is called, which would try for minutes: the key, and a login on an own host."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jobs.clusters.managed.ray_launcher import ssh_target
from jobs.clusters.managed.ray_up_content import on_own_hosts
from jobs.clusters.managed.ssh_tunnel import CONNECT_TIMEOUT_S, run_over_ssh
from jobs.errors import ClusterError
from trainers.config.storage_location import in_home
from trainers.errors import ConfigError

LOGIN_TIMEOUT_S = CONNECT_TIMEOUT_S + 10.0


def check_key(content: Mapping[str, Any]) -> None:
    """Refuses a file of `ray up` whose SSH key is not on this machine.

    Raises:
        ConfigError: names the file.
    """
    key = (content.get("auth") or {}).get("ssh_private_key")
    if key is not None and not in_home(str(key)).is_file():
        raise ConfigError(
            f"auth.ssh_private_key (ray_up.private_key of a spec): there is no file {key}; name the key that logs in "
            "to the hosts, or leave it out for those that ssh finds by itself"
        )


def check_login(content: Mapping[str, Any]) -> None:
    """Logs in to the head of own hosts, which are there before `ray up`; a cloud's are not.

    Raises:
        ClusterError: it does not respond, or refuses the user; with what ssh says, and a command to try.
    """
    host = content["provider"].get("head_ip")
    if not on_own_hosts(content) or host is None:
        return
    target = ssh_target(content["auth"], str(host))
    # Who the host is, is decided when its address is remembered.
    code, said = run_over_ssh(target, Path(os.devnull), "true", timeout_s=LOGIN_TIMEOUT_S)
    if code != 0:
        key = f" -i {target.private_key}" if target.private_key is not None else ""
        raise ClusterError(
            f"{target.user} cannot log in to the head, {host} ({said or f'exit code {code}'}): nothing was started; "
            f"try `ssh{key} {target.user}@{host}`, and see provider.head_ip, auth.ssh_user and auth.ssh_private_key "
            "(ray_up.head_ip, user and private_key of a spec)"
        )
