"""Names this machine and its processes, and finds its CPUs, its network and the folder of this user's state.

Hosts and containers may share a home folder, but not processes. Does not import torch.
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
# Variable with the number of CPUs of a job that gets only a part of the machine.
CPUS = "RAYSCRIBE_CPUS"
# Read by torch's gloo when a group is made. By default gloo resolves the host's own name. If /etc/hosts maps the name
# to 127.0.1.1, or does not have it, ranks on other hosts cannot connect.
GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"
# Read when torch is loaded; a user's own setting is kept. By default, threads of a computation spin while they wait for
# each other. If other programs run on the machine, spinning threads keep cores from threads that compute, and a step
# takes five times as long (docs/speed.md).
ASLEEP = {"OMP_WAIT_POLICY": "passive"}


def this_machine() -> str:
    """Returns `<host>/<boot id>/<namespace of process ids>`; only the host on systems other than Linux."""
    try:
        return f"{socket.gethostname()}/{BOOT_ID.read_text(encoding='ascii').strip()}/{PID_NAMESPACE.readlink()}"
    except OSError:
        return f"{socket.gethostname()}//"


def host_of(machine: str) -> str:
    """Returns the host's name from `this_machine`."""
    return machine.partition("/")[0]


def sees_processes_of(machine: str) -> bool:
    """Returns True if processes that were started on `machine` are visible here; the host may have been renamed."""
    return machine.partition("/")[2] == this_machine().partition("/")[2]


def was_restarted(machine: str) -> bool:
    """Returns True if `machine` is an earlier boot of this host, whose processes have all ended."""
    (host, boot), (now_host, now_boot) = (name.split("/")[:2] for name in (f"{machine}/", this_machine()))
    return host == now_host and boot not in ("", now_boot)


def process_name(process_id: int | None = None) -> str:
    """Returns the name of a process, by default this one: `<machine>/<process id>/<start time>`.

    Unique over reboots and containers. The start time is in the system's ticks, which clock changes do not affect.
    """
    number = os.getpid() if process_id is None else process_id
    return f"{this_machine()}/{number}/{_start_of(number)}"


def process_has_ended(holder: str) -> bool:
    """Returns True if `holder`, a process's name, is of this machine and has ended. Unknown names count as alive."""
    parts = holder.rsplit("/", 2)
    if len(parts) != 3 or not parts[1].isdecimal():
        return False
    machine, process_id, start = parts
    return sees_processes_of(machine) and _start_of(int(process_id)) != start


def end_with_parent() -> None:
    """Ends this `multiprocessing` process when the process that requested it ends, in whatever way.

    The system cannot do this, since the parent of a fork server's processes is the server.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=wait, name="parent", daemon=True).start()


def home() -> Path:
    """Returns the folder of the command line's state: RAYSCRIBE_HOME or, made private, ~/.rayscribe."""
    chosen = os.environ.get("RAYSCRIBE_HOME")
    if chosen:
        return in_home(chosen).absolute()
    folder = in_home("~/.rayscribe")
    with contextlib.suppress(OSError):
        # A folder chosen by the user keeps its permissions.
        if folder.stat().st_mode & FOR_OTHERS:
            folder.chmod(FOR_ITS_OWNER)
    return folder.absolute()


def make_private_folder(folder: Path) -> None:
    """Creates a folder and its missing parents so that only this user can enter them."""
    for each in (*reversed(folder.parents), folder):
        # `parents=True` would set the mode only on the last folder.
        if not each.exists():
            each.mkdir(mode=FOR_ITS_OWNER, exist_ok=True)


def _start_of(process_id: int) -> str:
    """Returns the start of a process in ticks since boot; "" if there is no such process."""
    try:
        stat = Path(f"/proc/{process_id}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    # Field 2 is a name in parentheses, with any characters; field 22 is the start (proc(5)). A zombie has ended.
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] in ("Z", "X") else fields[19]


def cpus_of_this_machine() -> int:
    """Returns the number of usable CPUs: RAYSCRIBE_CPUS if set, else all. Raises ConfigError if it is invalid."""
    given = os.environ.get(CPUS)
    if given is None:
        return os.cpu_count() or 1
    if not given.isdecimal() or int(given) < 1:
        raise ConfigError(f"{CPUS} must be a number of CPUs from 1 (got {given!r}); unset it to use all CPUs")
    return int(given)


def interface_of(address: str) -> str | None:
    """Returns this machine's network interface with an address; None if no interface has it, as behind a NAT."""
    import psutil  # noqa: PLC0415 -- clients load this module, and do not need psutil

    found = (name for name, items in psutil.net_if_addrs().items() if address in (item.address for item in items))
    return next(found, None)


def wait_asleep() -> None:
    """Makes the threads of torch, which must not be loaded yet, sleep while they wait."""
    for name, value in ASLEEP.items():
        os.environ.setdefault(name, value)
