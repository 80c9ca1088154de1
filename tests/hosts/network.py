"""Hosts on this machine: Linux namespaces with a network address, an sshd, processes and folders of their own.

All hosts of a `Network` are on one bridge, and so is this machine, at the network's first address. Nothing else joins
them: each has its own /tmp, HOME and /dev/shm. Needs root, iproute2, util-linux, openssh-server and openssh-client.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from tests.hosts import host_init

REPOSITORY = Path(__file__).resolve().parents[2]
# One of 10.77.0.0/24, 10.77.1.0/24, …, for each test session on this machine.
NETWORKS = 256
TOOLS = ("ip", "unshare", "nsenter", "ssh", "ssh-keygen", "rsync")
NAMESPACES = ("--net", "--mount", "--pid", "--uts", "--ipc", "--fork", "--mount-proc")
SSHD = "/usr/sbin/sshd"
TIMEOUT_S = 60.0
LISTENING = "0A"


def why_not() -> str | None:
    """Why this machine cannot have such hosts; None where it can."""
    if os.geteuid() != 0:
        return "hosts in network namespaces need root"
    missing = [name for name in TOOLS if shutil.which(name) is None] + [SSHD] * (not Path(SSHD).is_file())
    if missing:
        return f"hosts need {', '.join(missing)}: apt-get install iproute2 util-linux openssh-server rsync"
    command = f"mount -t tmpfs tmpfs /run && ip link add name rs-try type bridge && {SSHD} -V"
    tried = subprocess.run(["unshare", *NAMESPACES, "sh", "-c", command], capture_output=True, text=True, check=False)
    if tried.returncode != 0 and "OpenSSH" not in tried.stderr:
        return f"this machine gives no namespaces: {tried.stderr.strip()}"
    return None


class Network:
    """A bridge of this machine with hosts on it."""

    def __init__(self, folder: Path, number: int):
        """Takes over a bridge.

        Args:
            folder: For keys.
            number: Of the network, which names bridge and addresses.
        """
        self.number, self.hosts = number, {}  # type: int, dict[str, Host]
        self.private_key, self._folder = folder / "client", folder
        self._public_key = new_key(self.private_key)

    @property
    def bridge(self) -> str:
        """Name of its bridge on this machine."""
        return bridge_name(self.number)

    @property
    def gateway(self) -> str:
        """Address of this machine."""
        return self.address(1)

    def address(self, last: int) -> str:
        """An address of this network."""
        return f"10.77.{self.number}.{last}"

    def add_host(
        self,
        name: str,
        *,
        environment: Mapping[str, str] | None = None,
        read_only: Sequence[Path] = (),
        shared: Sequence[Path] = (),
    ) -> "Host":
        """Starts a host.

        Args:
            name: Its host name.
            environment: Variables of its shells, next to PATH.
            read_only: Folders that it sees, next to the repository and its environment.
            shared: Folders that it may write to.
        """
        last = len(self.hosts) + 10
        host_key = self._folder / name
        new_key(host_key)
        software = {str(path) for path in [*installed_software(), *read_only]}
        setup = host_init.Setup(
            name=name,
            host_key=host_key.read_text(),
            authorized_key=self._public_key,
            environment={
                "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
                **(environment or {}),
            },
            read_only=sorted(software),
            shared=[str(path) for path in shared],
        )
        host = Host(name, self.address(last), f"rs{self.number}-{last}", setup)
        host.start(self.bridge)
        self.hosts[name] = host
        return host


@dataclass
class Host:
    """One host.

    Attributes:
        name: Its host name.
        address: Its IP address.
        link: This machine's end of its network cable.
        setup: What it started with.
    """

    name: str
    address: str
    link: str
    setup: host_init.Setup
    _unshare: subprocess.Popen[str] | None = field(default=None, repr=False)
    _init: psutil.Process | None = field(default=None, repr=False)

    def start(self, bridge: str) -> None:
        """Makes its namespaces, plugs it in, and waits for its sshd."""
        command = ["unshare", *NAMESPACES, "--kill-child", sys.executable, "-I", host_init.__file__]
        self._unshare = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert self._unshare.stdin is not None and self._unshare.stdout is not None
        parent = psutil.Process(self._unshare.pid)
        wait_until(lambda: bool(parent.children()), f"first process of {self.name}")
        self._init = parent.children()[0]
        inside = f"{self.link}-in"
        ip("link", "add", self.link, "type", "veth", "peer", "name", inside)
        ip("link", "set", self.link, "master", bridge, "up")
        ip("link", "set", inside, "netns", str(self._init.pid))
        for arguments in (f"addr add {self.address}/24 dev {inside}", f"link set {inside} up", "link set lo up"):
            self.run("ip", *arguments.split(), own_folders=False)
        self._unshare.stdin.write(json.dumps(self.setup) + "\n")
        self._unshare.stdin.flush()
        assert self._unshare.stdout.readline() == "ready\n"
        wait_until(lambda: 22 in self.listening(), f"sshd of {self.name}")

    def stop(self) -> None:
        """Ends the host with all its processes."""
        if self._unshare is not None:
            assert self._unshare.stdin is not None and self._unshare.stdout is not None
            self._unshare.stdin.close()
            self._unshare.wait(TIMEOUT_S)
            self._unshare.stdout.close()
            self._unshare = None

    def enter(self, *command: str) -> list[str]:
        """A command line that runs a command on the host, with the variables of its shells."""
        variables = [f"{name}={value}" for name, value in {"HOME": "/root", **self.setup["environment"]}.items()]
        return ["nsenter", "--target", str(self.init_pid), "--all", "--wd=/root", "env", *variables, *command]

    def run(self, *command: str, own_folders: bool = True, check: bool = True) -> "subprocess.CompletedProcess[str]":
        """Runs a command on the host.

        Args:
            command: Its parts.
            own_folders: Whether it sees the host's folders; otherwise it is in the host's network alone.
            check: Whether it must succeed.
        """
        line = self.enter(*command) if own_folders else ["nsenter", "--target", str(self.init_pid), "--net", *command]
        return subprocess.run(
            line, check=check, capture_output=True, text=True, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL
        )

    def spawn(self, *command: str, log: Path) -> "subprocess.Popen[bytes]":
        """Starts a command on the host, which ends with the host; its output is appended to a file of this machine."""
        with log.open("ab") as output:
            return subprocess.Popen(self.enter(*command), stdin=subprocess.DEVNULL, stdout=output, stderr=output)

    def processes(self) -> list[psutil.Process]:
        """All processes but its first and its sshd, with their children."""
        assert self._init is not None
        found = []
        for child in self._init.children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if child.status() != psutil.STATUS_ZOMBIE and not child.name().startswith("sshd"):
                    found.append(child)
        return found

    def named(self, part: str) -> list[psutil.Process]:
        """Processes whose command line contains a text."""
        found = []
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                if part in " ".join(process.cmdline()):
                    found.append(process)
        return found

    def kill(self, part: str = "") -> int:
        """SIGKILL for processes whose command line contains a text, by default all; gives how many there were."""
        victims = self.named(part)
        for process in victims:
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGKILL)
        psutil.wait_procs(victims, timeout=TIMEOUT_S)
        return len(victims)

    def listening(self) -> set[int]:
        """TCP ports at which something on the host listens, on loopback too."""
        ports = set()
        for name in ("tcp", "tcp6"):
            for line in Path(f"/proc/{self.init_pid}/net/{name}").read_text().splitlines()[1:]:
                columns = line.split()
                if columns[3] == LISTENING:
                    ports.add(int(columns[1].rpartition(":")[2], 16))
        return ports

    def unplug(self) -> None:
        """Cuts the host off from the network; its connections stay open and silent."""
        ip("link", "set", self.link, "down")

    def plug(self) -> None:
        """Joins it again."""
        ip("link", "set", self.link, "up")

    @contextlib.contextmanager
    def unplugged(self) -> Iterator[None]:
        """Cut off for the duration of the block."""
        self.unplug()
        try:
            yield
        finally:
            self.plug()

    def fill_disk(self, *, leave_bytes: int = 0) -> None:
        """Makes /tmp as small as what it holds, so that nothing more fits."""
        used = os.statvfs(f"/proc/{self.init_pid}/root/tmp")
        # A size of 0 would be no limit.
        size = max(1, used.f_blocks - used.f_bfree) * used.f_frsize + leave_bytes
        self.run("mount", "-o", f"remount,size={size}", "/tmp")

    def free_disk(self) -> None:
        """Gives /tmp its size back."""
        self.run("mount", "-o", f"remount,size={host_init.OWN_FOLDERS['/tmp']}", "/tmp")

    @property
    def init_pid(self) -> int:
        """Process id of its first process on this machine."""
        assert self._init is not None, f"{self.name} has not started"
        return int(self._init.pid)


@contextlib.contextmanager
def network() -> Iterator[Network]:
    """A network for the duration of the block, with which its hosts end."""
    number = _new_bridge()
    with TemporaryDirectory(prefix="rs-hosts-", dir="/tmp") as folder:
        made = Network(Path(folder), number)
        try:
            ip("addr", "add", f"{made.gateway}/24", "dev", made.bridge)
            ip("link", "set", made.bridge, "up")
            yield made
        finally:
            for host in made.hosts.values():
                host.stop()
            ip("link", "delete", made.bridge)


def _new_bridge() -> int:
    """Makes the first bridge that no other session has; gives its number."""
    for number in range(NETWORKS):
        command = ["ip", "link", "add", "name", bridge_name(number), "type", "bridge"]
        if subprocess.run(command, check=False, capture_output=True).returncode == 0:
            return number
    raise RuntimeError(f"{NETWORKS} bridges named {bridge_name(0)} and so on are in use: ip link delete NAME")


def bridge_name(number: int) -> str:
    """Of a network's bridge."""
    return f"rsbr{number}"


def installed_software() -> list[Path]:
    """This repository, and the folders from which Python here runs and imports."""
    paths = {REPOSITORY, Path(sys.prefix), Path(sys.base_prefix), *(Path(part) for part in sys.path if part)}
    outside = [path for path in sorted(path.resolve() for path in paths) if path.is_dir()]
    return [path for path in outside if not any(other in path.parents for other in outside)]


def new_key(path: Path) -> str:
    """Makes a key pair for ssh; gives the public one."""
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", str(path)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    return path.with_name(f"{path.name}.pub").read_text()


def ip(*arguments: str) -> None:
    """Runs `ip` on this machine."""
    subprocess.run(["ip", *arguments], check=True)


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = TIMEOUT_S) -> None:
    """Waits for a condition."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, f"no {what} in {timeout_s:.0f} s"
        time.sleep(0.05)
