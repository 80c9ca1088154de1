"""The remembered key of a head: what tells that it has changed, and the only way to accept another."""

import subprocess
import tempfile
from pathlib import Path

from jobs.clusters.managed.cluster_record import RayUpRecord, write_private
from jobs.clusters.managed.ssh_tunnel import CONNECT_TIMEOUT_S, run_over_ssh
from jobs.errors import ClusterError

LOGIN_TIMEOUT_S = CONNECT_TIMEOUT_S + 10.0
FINGERPRINT_TIMEOUT_S = 30.0
# What ssh prints where a host shows another key than its remembered one.
CHANGED = ("Host key verification failed", "REMOTE HOST IDENTIFICATION HAS CHANGED")


def key_changed(message: str) -> bool:
    """Whether ssh has refused a host for its key."""
    return any(text in message for text in CHANGED)


def check_host_key(record: RayUpRecord) -> None:
    """Refuses, by ClusterError, a head that shows another key: it may be another machine, and gets no token."""
    assert record.ssh is not None
    _, message = run_over_ssh(record.ssh, record.known_hosts_path, "true", timeout_s=LOGIN_TIMEOUT_S)
    if key_changed(message):
        raise ClusterError(changed_text(record))


def changed_text(record: RayUpRecord) -> str:
    """What a changed key means, and the fix."""
    assert record.ssh is not None
    return (
        f"the head of {record.name}, {record.ssh.host}, shows another SSH host key than the remembered one: it was "
        "reinstalled, or is another machine, which would get the cluster's token; compare and accept its key: "
        f"rayscribe cluster forget-host {record.name}"
    )


def shown_key(record: RayUpRecord, folder: Path) -> Path:
    """Gets the key that the head shows now, as a file of known hosts.

    Raises:
        ClusterError: it shows none.
    """
    assert record.ssh is not None
    path = folder / "known_hosts"
    _, message = run_over_ssh(record.ssh, path, "true", timeout_s=LOGIN_TIMEOUT_S)
    if not path.exists():
        raise ClusterError(f"the head of {record.name}, {record.ssh.host}, shows no key: {message or 'no answer'}")
    return path


def fingerprints(path: Path) -> list[str]:
    """Fingerprints of a file of known hosts, as `ssh-keygen -l` shows them; none where there is no file."""
    if not path.exists():
        return []
    line = ["ssh-keygen", "-l", "-f", str(path)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=FINGERPRINT_TIMEOUT_S, check=False)
    return done.stdout.splitlines()


class KeyChange:
    """The remembered key of a head and the one that it shows now."""

    def __init__(self, record: RayUpRecord):
        """Asks the head.

        Raises:
            ClusterError: it shows no key.
        """
        self._record = record
        with tempfile.TemporaryDirectory() as folder:
            path = shown_key(record, Path(folder))
            self._content = path.read_text(encoding="utf-8")
            self.before, self.now = fingerprints(record.known_hosts_path), fingerprints(path)

    def accept(self) -> None:
        """Remembers the key that was shown, and no other."""
        write_private(self._record.known_hosts_path, self._content)
