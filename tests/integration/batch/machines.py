"""Hosts made of namespaces: each has a name, address, processes, and /tmp of its own; they share folders.

A scheduler's daemons on them see the processes of their host only, and so does `ray stop`. When a host is shut down,
the kernel ends all of its processes.
"""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.integration.forked_process import REPOSITORY

TIMEOUT_S = 60.0
# Notes what it is told, as a mail would say it.
MAILER = '#!/bin/sh\necho "$@" >> "$(dirname "$0")/mails"\n'
# In the place of a site's own `module`.
MODULES = 'module() { echo "module $*"; }\n'
# Bash stays as the first process, which takes the ended orphans away.
BOOT = """
set -e
name=$1; shift
hostname "$name"
mount --make-rprivate /
stage=$(mktemp -d /mnt/machine-XXXXXX)
mount -t tmpfs tmpfs "$stage"
for folder in "$@"; do mkdir -p "$stage$folder"; mount --bind "$folder" "$stage$folder"; done
mount -t tmpfs -o mode=1777 tmpfs /tmp
for folder in "$@"; do mkdir -p "$folder"; mount --move "$stage$folder" "$folder"; done
umount "$stage"
rmdir "$stage"
mount --bind "$1/hosts" /etc/hosts
mount --bind "$1/profile.d" /etc/profile.d
ip link set lo up
echo ready
sleep infinity & wait
"""


@dataclass(frozen=True)
class Machine:
    """A host.

    Attributes:
        name: Its host name.
        address: Its IPv4 address on the network of the hosts.
        init: Process id of its first process.
    """

    name: str
    address: str
    init: int

    def popen(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None, folder: Path | None = None
    ) -> subprocess.Popen[str]:
        """Starts a command on the host."""
        enter = ["nsenter", "--target", str(self.init), "--pid", "--net", "--uts", "--ipc", "--mount"]
        return subprocess.Popen(
            [*enter, f"--wd={folder or '/'}", *command],
            env={"PATH": os.environ["PATH"], **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None, folder: Path | None = None
    ) -> str:
        """Runs a command on the host to its end; what it prints."""
        with self.popen(command, environment, folder) as process:
            said, _ = process.communicate(timeout=120)
        assert process.returncode == 0, f"{' '.join(command)} on {self.name}: exit code {process.returncode}\n{said}"
        return said


@contextlib.contextmanager
def machines(names: Sequence[str], folder: Path, shared: Sequence[Path] = ()) -> Iterator[list[Machine]]:
    """Starts one or two hosts, and shuts them down.

    Args:
        names: Their host names.
        folder: One for their own files, which they share; so they do with the repository and its Python.
        shared: More that they share.
    """
    addresses = [f"10.87.0.{number}" for number in range(1, len(names) + 1)]
    lines = [f"{address} {name}" for address, name in zip(addresses, names, strict=True)]
    (folder / "profile.d").mkdir()
    (folder / "profile.d" / "modules.sh").write_text(MODULES)
    (folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))
    with contextlib.ExitStack() as stack:
        hosts = [
            Machine(name, address, stack.enter_context(_booted(name, [folder, *shared])))
            for name, address in zip(names, addresses, strict=True)
        ]
        _connect(hosts)
        yield hosts


@contextlib.contextmanager
def _booted(name: str, shared: Sequence[Path]) -> Iterator[int]:
    kept = [*shared, REPOSITORY, Path(sys.prefix)]
    outside = [str(folder) for folder in kept if not any(other in folder.parents for other in kept)]
    spaces = ["--pid", "--fork", "--kill-child", "--mount-proc", "--net", "--uts", "--ipc", "--mount"]
    with subprocess.Popen(
        ["unshare", *spaces, "bash", "-c", BOOT, name, name, *outside], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n", f"host {name} did not boot"
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            yield int(children[0])
        finally:
            process.kill()


def _connect(hosts: Sequence[Machine]) -> None:
    """Gives each host its address on a cable, whose other end is the other host, or hangs loose."""
    peer = ["name", "eth0", "netns", str(hosts[1].init)] if len(hosts) > 1 else ["name", "loose"]
    # With the process ids of this machine, of which the other host's is one.
    add = ["nsenter", f"--net=/proc/{hosts[0].init}/ns/net", "ip", "link", "add", "eth0", "type", "veth", "peer", *peer]
    subprocess.run(add, check=True, timeout=TIMEOUT_S)
    for host in hosts:
        host.run(["ip", "address", "add", f"{host.address}/24", "dev", "eth0"])
        host.run(["ip", "link", "set", "eth0", "up"])


def skip_without(programs: Sequence[str], packages: str) -> None:
    """Skips the test where hosts cannot be made, or the scheduler is not installed."""
    if os.geteuid() != 0:
        pytest.skip("hosts made of namespaces need root")
    missing = [name for name in (*programs, "unshare", "nsenter", "ip") if not _on_path(name)]
    if missing:
        pytest.skip(f"no {', '.join(missing)}: apt-get install {packages} iproute2")
    probe = subprocess.run(
        ["unshare", "--pid", "--fork", "--mount-proc", "--net", "--uts", "--ipc", "--mount", "true"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    if probe.returncode:
        pytest.skip(f"this machine makes no namespaces: {probe.stderr.strip()}")


def _on_path(name: str) -> bool:
    folders = [*os.environ["PATH"].split(os.pathsep), "/usr/sbin", "/sbin"]
    return any(os.access(Path(folder) / name, os.X_OK) for folder in folders)


def mailer(path: Path) -> None:
    """Writes the program that a scheduler mails with; it adds what it is told to `mails` next to it."""
    path.write_text(MAILER)
    path.chmod(0o755)


def wait_until(condition: Callable[[], bool], what: str, explain: Callable[[], str]) -> None:
    """Waits for a condition."""
    end = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < end, f"no {what} in {TIMEOUT_S} s\n{explain()}"
        time.sleep(0.2)
