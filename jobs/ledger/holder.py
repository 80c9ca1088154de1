"""Who holds the lease: a name from which other processes of the same machine see whether it still lives."""

import os
import socket
from pathlib import Path


def holder_here() -> str:
    """This process's name: `<host>/<machine>/<process id>/<start time>`. Unique over reboots and containers."""
    return f"{socket.gethostname()}/{_machine()}/{os.getpid()}/{_start_of(os.getpid())}"


def is_gone(holder: str) -> bool:
    """Whether a holder was a process of this machine that has ended. What is not known counts as there."""
    parts = holder.rsplit("/", 3)
    if len(parts) != 4 or not parts[2].isdecimal():
        return False
    _, machine, process_id, start = parts
    return bool(machine) and machine == _machine() and _start_of(int(process_id)) != start


def _machine() -> str:
    """This start of this machine, and the container in it that has process ids of its own; "" where Linux is not."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}.{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return ""


def _start_of(process_id: int) -> str:
    """When a process began, in ticks since the machine's start; "" where there is none."""
    try:
        stat = Path(f"/proc/{process_id}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    # The second field is a name in brackets that may hold anything; the 22nd is the start (proc(5)). A zombie is gone.
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] in ("Z", "X") else fields[19]
