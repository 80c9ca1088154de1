"""On which machine something was started: hosts and containers may share a home folder, not its processes."""

import socket
from pathlib import Path

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
PID_NAMESPACE = Path("/proc/self/ns/pid")


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
    host, boot, _ = machine.split("/", 2)
    now_host, now_boot, _ = this_machine().split("/", 2)
    return host == now_host and boot != now_boot
