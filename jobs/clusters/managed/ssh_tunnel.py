"""SSH to a head: its known host key, and a port that is forwarded to its loopback, where its dashboard listens.

A head with another key than the known one is refused.
"""

import os
import select
import subprocess
import threading
import time
from pathlib import Path

from jobs.clusters.managed.cluster_record import DASHBOARD_PORT, RayUpRecord, SshTarget
from jobs.errors import ClusterError
from trainers.config.storage_location import in_home
from trainers.distributed.local_ray import LOOPBACK, free_ports

CONNECT_TIMEOUT_S = 20.0
READY = "rayscribe-is-ready"
READ_BYTES = 4096
# Seconds between keepalives; a connection is closed after three unanswered ones.
ALIVE_INTERVAL_S = 15
# Timeout of a login that only reads the key.
LOGIN_TIMEOUT_S = CONNECT_TIMEOUT_S + 10.0
# Messages of ssh for a host with another key than the known one.
CHANGED = ("Host key verification failed", "REMOTE HOST IDENTIFICATION HAS CHANGED")


def in_quotes(path: Path) -> str:
    """Quotes a path in an option of ssh, which splits at spaces and expands %. Pure."""
    return '"{}"'.format(str(path).replace("%", "%%"))


def ssh_command(target: SshTarget, known_hosts: Path) -> list[str]:
    """Returns the start of an ssh command line, up to the host; it never prompts."""
    options = {
        "BatchMode": "yes",
        # A head with another key than at its start is refused, since the token goes through this connection.
        "StrictHostKeyChecking": "accept-new",
        "UserKnownHostsFile": in_quotes(known_hosts),
        "ConnectTimeout": f"{CONNECT_TIMEOUT_S:.0f}",
        "ServerAliveInterval": str(ALIVE_INTERVAL_S),
        "ServerAliveCountMax": "3",
        "ControlPath": "none",
        "LogLevel": "ERROR",
    }
    if target.private_key is not None:
        options["IdentitiesOnly"] = "yes"
    if target.proxy_command is not None:
        options["ProxyCommand"] = target.proxy_command
    command = ["ssh", *(part for name, value in options.items() for part in ("-o", f"{name}={value}"))]
    if target.private_key is not None:
        command += ["-i", str(in_home(target.private_key))]
    return [*command, f"{target.user}@{target.host}"]


def run_over_ssh(
    target: SshTarget, known_hosts: Path, command: str, *, timeout_s: float
) -> "subprocess.CompletedProcess[str]":
    """Runs a command in the shell of a host, for at most `timeout_s`; returns its exit code and output.

    The code is 255 if ssh itself failed, and -1 after the timeout, with a message as standard error.
    """
    line = [*ssh_command(target, known_hosts), command]
    try:
        return subprocess.run(line, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(line, -1, "", f"no answer in {timeout_s:.0f} s")


class Tunnel:
    """A forwarded port, which keeps its number when the connection is opened again."""

    def __init__(self, record: RayUpRecord, *, port: int | None = None):
        """Opens no connection yet; the record has the head's address. Without a `port`, uses any free local port."""
        assert record.ssh is not None
        self._record, self.ssh = record, record.ssh
        self.port = port if port is not None else free_ports(1)[0]
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def ensure(self) -> None:
        """Opens the connection if it is closed; raises ClusterError with ssh's message if that fails."""
        with self._lock:
            if not self.alive:
                self.close()
                self._open()

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _open(self) -> None:
        forward = f"{LOOPBACK}:{self.port}:{LOOPBACK}:{DASHBOARD_PORT}"
        *command, host = ssh_command(self.ssh, self._record.known_hosts_path)
        # `cat` ends with its input, so the connection never outlives this process, however the process ends.
        command += ["-o", "ExitOnForwardFailure=yes", "-L", forward, host, f"echo {READY}; exec cat"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
        if _says_ready(self._process, 2 * CONNECT_TIMEOUT_S):
            return
        self._process.kill()
        message = self._process.communicate()[1].decode(errors="replace").strip() or "no answer"
        self._process = None
        raise ClusterError(
            f"the head of cluster {self._record.name}, {self.ssh.user}@{self.ssh.host}, does not accept an SSH "
            f"connection: {message.splitlines()[-1]}; check that it is up"
        )


def _says_ready(process: "subprocess.Popen[bytes]", timeout_s: float) -> bool:
    """Returns True once the head's message shows that ssh, and no other process, has the port; False if none comes."""
    assert process.stdout is not None
    output, end = b"", time.monotonic() + timeout_s
    while READY.encode() not in output:
        left_s = end - time.monotonic()
        if left_s <= 0 or not select.select([process.stdout], [], [], left_s)[0]:
            return False
        part = os.read(process.stdout.fileno(), READ_BYTES)
        if not part:
            return False
        output += part
    return True


def key_changed(message: str) -> bool:
    """Returns True if ssh has refused a host because of its key."""
    return any(text in message for text in CHANGED)


def check_host_key(record: RayUpRecord) -> None:
    """Raises ClusterError if a head has another key; it may be another machine, which must not get the token."""
    assert record.ssh is not None
    login = run_over_ssh(record.ssh, record.known_hosts_path, "true", timeout_s=LOGIN_TIMEOUT_S)
    if key_changed(login.stderr):
        raise ClusterError(changed_text(record))


def changed_text(record: RayUpRecord) -> str:
    """Returns the message about a changed key, with the fix."""
    assert record.ssh is not None
    return (
        f"the head of {record.name}, {record.ssh.host}, has another SSH host key than the known one: it was "
        "reinstalled, or is another machine, which would get the cluster's token; if its console shows the new key "
        f"(ssh-keygen -l -f /etc/ssh/ssh_host_ed25519_key.pub), remove {record.known_hosts_path}"
    )
