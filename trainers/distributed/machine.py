"""The machine that something was started on, its network, and the folder of this user's state there.

Hosts and containers may share a home folder, not its processes. Imports no torch.
"""

import contextlib
import multiprocessing
import os
import socket
import threading
from multiprocessing import connection
from pathlib import Path

from trainers.config.storage_location import in_home
from trainers.errors import ConfigError

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
PID_NAMESPACE = Path("/proc/self/ns/pid")
FOR_ITS_OWNER, FOR_OTHERS = 0o700, 0o077
# Where a job has a part of the machine: how many CPUs that is.
CPUS = "RAYSCRIBE_CPUS"
# Read by torch's gloo when a group is made. Without it, gloo asks for the address of the host's own name, which
# /etc/hosts often gives as 127.0.1.1 or not at all; the ranks of other hosts then cannot connect.
GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"
# Read when torch is loaded; what a user has set stays. By default the threads of a computation spin while they wait for
# each other. Where anything else works on the machine, one then spins for another that has no core: a step takes five
# times as long (docs/speed.md).
ASLEEP = {"OMP_WAIT_POLICY": "passive"}


def this_machine() -> str:
    """`<host>/<start of the machine>/<namespace of process ids>`; the host alone where Linux is not."""
    try:
        return f"{socket.gethostname()}/{BOOT_ID.read_text(encoding='ascii').strip()}/{PID_NAMESPACE.readlink()}"
    except OSError:
        return f"{socket.gethostname()}//"


def host_of(machine: str) -> str:
    """The host's name."""
    return machine.partition("/")[0]


def sees_processes_of(machine: str) -> bool:
    """Whether the processes that were started there, and live, are seen from here; the host may have a new name."""
    return machine.partition("/")[2] == this_machine().partition("/")[2]


def was_restarted(machine: str) -> bool:
    """Whether it is an earlier start of this host, whose processes have all ended."""
    (host, boot), (now_host, now_boot) = (name.split("/")[:2] for name in (f"{machine}/", this_machine()))
    return host == now_host and boot not in ("", now_boot)


def process_name(process_id: int | None = None) -> str:
    """A process's name, by default this one's: `<machine>/<process id>/<start time>`.

    Unique over reboots and containers. The start is in the system's ticks, which no change of the clock moves.
    """
    number = os.getpid() if process_id is None else process_id
    return f"{this_machine()}/{number}/{_start_of(number)}"


def process_has_ended(holder: str) -> bool:
    """Whether a holder was a process of this machine that has ended. An unknown one counts as alive."""
    parts = holder.rsplit("/", 2)
    if len(parts) != 3 or not parts[1].isdecimal():
        return False
    machine, process_id, start = parts
    return sees_processes_of(machine) and _start_of(int(process_id)) != start


def end_with_parent() -> None:
    """Has this process, which `multiprocessing` has started, end when the one that asked for it does, however.

    Of those that a fork server starts, the parent that the system knows is the server.
    """
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)


def home() -> Path:
    """Folder of what the command line keeps on this machine: RAYSCRIBE_HOME, or ~/.rayscribe, closed to other users.

    Raises:
        ConfigError: this user has no home folder.
    """
    chosen = os.environ.get("RAYSCRIBE_HOME")
    if chosen:
        return in_home(chosen).absolute()
    folder = in_home("~/.rayscribe")
    with contextlib.suppress(OSError):
        # A folder that was chosen may have a purpose of its own.
        if folder.stat().st_mode & FOR_OTHERS:
            folder.chmod(FOR_ITS_OWNER)
    return folder.absolute()


def make_private_folder(folder: Path) -> None:
    """Makes a folder, and those above it that are not there, so that only this user can enter them."""
    for each in (*reversed(folder.parents), folder):
        # Not `parents=True`, which gives the mode to the last one only.
        if not each.exists():
            each.mkdir(mode=FOR_ITS_OWNER, exist_ok=True)


def _start_of(process_id: int) -> str:
    """When a process began, in ticks since the machine's start; "" where there is none."""
    try:
        stat = Path(f"/proc/{process_id}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    # The second field is a name in brackets that may hold anything; the 22nd is the start (proc(5)). A zombie is gone.
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] in ("Z", "X") else fields[19]


def cpus_of_this_machine() -> int:
    """How many CPUs there are to use.

    Raises:
        ConfigError: RAYSCRIBE_CPUS is no number of them.
    """
    given = os.environ.get(CPUS)
    if given is None:
        return os.cpu_count() or 1
    if not given.isdecimal() or int(given) < 1:
        raise ConfigError(f"{CPUS} must be a number of CPUs from 1 (got {given!r}); unset it for all of this machine")
    return int(given)


def interface_of(address: str) -> str | None:
    """Name of this machine's network interface with an address; None where none has it, as behind a NAT."""
    import psutil  # noqa: PLC0415 -- a client loads this module and has no use for it

    found = (name for name, items in psutil.net_if_addrs().items() if address in (item.address for item in items))
    return next(found, None)


def wait_asleep() -> None:
    """Has the threads of torch, which is not loaded yet, sleep while they wait."""
    for name, value in ASLEEP.items():
        os.environ.setdefault(name, value)
