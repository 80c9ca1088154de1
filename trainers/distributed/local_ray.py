"""Starts a Ray on this machine only, by `ray start`, with its own ports, token and temporary folder.

`ray.init` has no option for the port of the dashboard's agent, so two Rays that it starts on one machine clash, and
jobs of the second Ray find no agent. `ray stop` ends every Ray of the machine; this module ends only its own.
"""

import contextlib
import ctypes
import math
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from trainers.distributed.console import print_line
from trainers.errors import ResourceError, StoppedError

LOOPBACK = "127.0.0.1"
# All ports that Ray listens on, except those of workers, which take any free port.
PORTS = (
    *("port", "node-manager-port", "object-manager-port", "ray-client-server-port", "metrics-export-port"),
    *("dashboard-port", "dashboard-agent-listen-port", "dashboard-agent-grpc-port", "runtime-env-agent-port"),
)
# Below Linux's ports for outgoing connections, which could take a port between our check and Ray's start.
FREE_PORTS = range(20_000, 32_000)
# Ray's temporary folder, inside our private folder (as is RAY_TMPDIR). Ray makes its folder accessible to all users,
# although it contains code and data of drivers and workers.
RAYS_OWN, SESSION = "ray", "session_latest"
# The path of a socket has at most 107 bytes; Ray's part of it has about 70, and the name of Ray's folder 4.
MAX_FOLDER_BYTES = 32
START_TIMEOUT_S = 180.0
POLL_S = 0.05
TRIES = 3
# Last message of `ray start` if its raylet starts too late, and of the raylet if its agents start too late.
LATE, GAVE_UP = "timed out during startup", re.compile(r"Timed out waiting for file \S+")
# A raylet waits only 15 s for its agents to write their ports to files, and no setting changes that. This is too short
# on a busy machine, so this module, which chooses all of these ports, writes the files.
PORT_FILES = {
    "dashboard_agent_listen_port": "dashboard-agent-listen-port",
    "metrics_agent_port": "dashboard-agent-grpc-port",
    "metrics_export_port": "metrics-export-port",
    "runtime_env_agent_port": "runtime-env-agent-port",
}
# Written by Ray's control store; the node's id follows.
FIRST_PORT_FILE = "gcs_server_port_"
LOG_LINES = 15
PR_SET_PDEATHSIG = 1
# Argument of a dashboard process.
GCS_ADDRESS = "--gcs-address="
AGENT_PORT = re.compile(r"--listen-port=(\d+)")
# All processes of a Ray inherit this variable; its value, the Ray's temporary folder, identifies the Ray.
MARK = "RAY_TMPDIR"
GCS_PROCESS = "gcs_server"


@dataclass(frozen=True)
class LocalRay:
    """A Ray started here: host:port for drivers, and the URL of its dashboard, which accepts jobs.

    Its temporary folder is in `folder`, which is private. `ports` are by option of `ray start`, and empty if they are
    not known any more.
    """

    address: str
    dashboard: str
    folder: Path
    ports: Mapping[str, int] = field(default_factory=dict)

    def wait_for_agent(self) -> None:
        """Waits until the Ray accepts jobs: its dashboard's agent, which Ray checks last, listens on its port.

        Raises:
            ResourceError: the Ray has ended, its port is taken, or the agent does not listen in time.
        """
        end = time.monotonic() + START_TIMEOUT_S
        while (ours := processes_of(self.folder)) and time.monotonic() < end:
            holder = _listener(self.ports["dashboard-agent-listen-port"])
            if holder is not None and (holder in ours or holder in processes_of(self.folder)):
                return
            if holder is not None:
                break
            time.sleep(POLL_S)
        raise ResourceError(f"Ray did not start on this machine: {_reason(self.folder, self.ports)}")

    def stop(self) -> None:
        stop_ray(self.folder)
        shutil.rmtree(self.folder, ignore_errors=True)


def start_ray(
    *,
    num_cpus: int | None,
    environment: Mapping[str, str],
    outlives_us: bool = False,
    dashboard_port: int | None = None,
    usual_dashboard_port: int | None = None,
    announce: Callable[[Path], None] = lambda folder: None,
    meanwhile: Callable[[], None] = lambda: None,
) -> LocalRay:
    """Starts a head on loopback, by default with all logical CPUs and any dashboard port.

    The token is in `environment`. Unless `outlives_us`, the Ray ends with this process, however the process ends.
    `usual_dashboard_port` is used if it is free and `dashboard_port` is None. `announce` is called with the temporary
    folder before the first process starts, and `meanwhile` during the first try. An error leaves nothing behind.

    Raises:
        ResourceError: Ray did not start. The message has a taken port and its holder, or the last lines of the log.
    """
    if dashboard_port is not None and not _is_free(dashboard_port):
        raise ResourceError(f"port {dashboard_port} is taken by {holder_of(dashboard_port)}: choose another port")
    parent = os.environ.get(MARK) or tempfile.gettempdir()
    parent = parent if len(os.fsencode(parent)) + len("/rs-12345678") <= MAX_FOLDER_BYTES else "/tmp"
    for left in reversed(range(TRIES)):
        held = held_ports(len(PORTS))
        ports = dict(zip(PORTS, held, strict=True))
        if dashboard_port is not None:
            ports["dashboard-port"] = dashboard_port
        elif usual_dashboard_port is not None and _is_free(usual_dashboard_port):
            ports["dashboard-port"] = usual_dashboard_port
        folder = Path(tempfile.mkdtemp(prefix="rs-", dir=parent))
        try:
            announce(folder)
            process = _launch(folder, ports, num_cpus, environment, outlives_us=outlives_us)
            threading.Thread(target=_write_port_files, args=(folder, ports), daemon=True).start()
            if left == TRIES - 1:
                meanwhile()
            if _comes_up(process, folder, ports):
                dashboard = f"http://{LOOPBACK}:{ports['dashboard-port']}"
                return LocalRay(f"{LOOPBACK}:{ports['port']}", dashboard, folder, ports)
            reason = _reason(folder, ports)
            stop_ray(folder)
        except BaseException:
            stop_ray(folder)
            shutil.rmtree(folder, ignore_errors=True)
            raise
        finally:
            for holder in held.values():
                holder.close()
        # A retry helps only if another program took a port first, or the machine is overloaded.
        if left == 0 or not ("is taken by" in reason or LATE in reason or GAVE_UP.search(reason)):
            raise ResourceError(f"Ray did not start on this machine: {reason}")
        print_line(f"Ray did not start on this machine; trying again with other ports: {reason}", sys.stderr)
        shutil.rmtree(folder, ignore_errors=True)
    raise AssertionError("unreachable")


def ray_command(*arguments: str) -> list[str]:
    """Returns a command line of Ray's CLI that runs in this interpreter."""
    return [sys.executable, "-P", "-m", "ray.scripts.scripts", *arguments]


def without_ray_settings() -> dict[str, str]:
    """Returns this process's environment without Ray's variables, which are settings of another cluster."""
    return {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}


def _launch(
    folder: Path, ports: Mapping[str, int], num_cpus: int | None, environment: Mapping[str, str], *, outlives_us: bool
) -> "subprocess.Popen[bytes]":
    command = ray_command("start", "--head", "--block", "--disable-usage-stats")
    command += [f"--temp-dir={folder / RAYS_OWN}", f"--node-ip-address={LOOPBACK}", f"--dashboard-host={LOOPBACK}"]
    command += ["--include-dashboard=true", *(f"--{name}={port}" for name, port in ports.items())]
    if num_cpus is not None:
        command.append(f"--num-cpus={num_cpus}")
    if not outlives_us:
        command = [sys.executable, "-P", __file__, str(os.getpid()), *command]
    binaries = Path(sys.executable).parent
    unproxied = environment.get("no_proxy") or environment.get("NO_PROXY") or ""
    # `*` means every host only if it is the only entry.
    unproxied = unproxied if unproxied.strip() == "*" else ",".join(filter(None, (unproxied, LOOPBACK, "localhost")))
    variables = {
        **environment,
        # Ray's own requests to the dashboard, as from Ray Train, must not go through the user's proxy.
        **dict.fromkeys(("no_proxy", "NO_PROXY"), unproxied),
        MARK: str(folder),
        # Makes `python` in a job this process's interpreter.
        "PATH": f"{binaries}{os.pathsep}{environment.get('PATH', os.defpath)}",
        # Do not wait for a drain when the only node ends.
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
        # Timeout for the control store, which starts late on a loaded machine; Ray's default is about 20 s.
        "RAY_gcs_server_port_wait_time_s": f"{START_TIMEOUT_S:.0f}",
        # Timeout for the agents to listen, since `_write_port_files` makes their ports known earlier.
        "RAY_agent_register_timeout_ms": f"{1000 * START_TIMEOUT_S:.0f}",
    }
    with (folder / "start.log").open("wb") as log:
        # In its own session, so that Ctrl-C in the terminal signals only the driver, which then stops Ray in order.
        return subprocess.Popen(
            # Python looks for modules in the working directory first; in /tmp, they could be any user's.
            command,
            cwd=folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _comes_up(process: "subprocess.Popen[bytes]", folder: Path, ports: Mapping[str, int]) -> bool:
    """Returns True once drivers can join, which requires no agent; False if Ray ends or takes too long."""
    end = time.monotonic() + START_TIMEOUT_S
    while process.poll() is None and time.monotonic() < end and _gave_up(folder) is None:
        if not any(_is_free(ports[name]) for name in ("port", "node-manager-port")):
            return True
        time.sleep(POLL_S)
    return False


def _write_port_files(folder: Path, ports: Mapping[str, int]) -> None:
    """Writes the port files of the agents, once the control store has written its own."""
    session, end = folder / RAYS_OWN / SESSION, time.monotonic() + START_TIMEOUT_S
    while folder.exists() and time.monotonic() < end:
        for first in session.glob(f"{FIRST_PORT_FILE}*"):
            node = first.name.removeprefix(FIRST_PORT_FILE)
            with contextlib.suppress(OSError):  # Ray has ended meanwhile
                for name, option in PORT_FILES.items():
                    part = session / f"{name}_{node}.part"
                    part.write_text(str(ports[option]))
                    part.rename(part.with_suffix(""))
            return
        time.sleep(POLL_S)


def _gave_up(folder: Path) -> str | None:
    """Returns the raylet's message if it gave up waiting for a file, else None."""
    with contextlib.suppress(OSError):
        found = GAVE_UP.search((folder / RAYS_OWN / SESSION / "logs" / "raylet.err").read_text(errors="replace"))
        return found[0] if found is not None else None
    return None


def _reason(folder: Path, ports: Mapping[str, int]) -> str:
    """Returns why Ray did not start: the port that another program holds, or the last lines of the log."""
    ours = {process.pid for process in processes_of(folder)}
    for name, port in ports.items():
        holder = _listener(port)
        if holder is not None and holder.pid not in ours:
            return f"--{name}={port} is taken by {holder_of(port)}"
    if (gave_up := _gave_up(folder)) is not None:
        return f"its raylet gave up, perhaps because the machine is overloaded: {gave_up}"
    with contextlib.suppress(OSError):
        lines = (folder / "start.log").read_text(errors="replace").splitlines()
        return f"{folder}/start.log ends with:\n" + "\n".join(lines[-LOG_LINES:])
    return f"it printed nothing within {START_TIMEOUT_S:.0f} s"


def stop_ray(folder: Path) -> None:
    """Kills all processes of the Ray with this temporary folder."""
    while found := processes_of(folder):
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(found, timeout=POLL_S)


def processes_of(folder: Path) -> list[psutil.Process]:
    """Returns the living processes of the Ray with this temporary folder, except this one.

    Processes that set their title overwrite their environment, so children of a found process count, too. Members of
    its session count as well, since agents of a raylet that has ended have no parent in the Ray.
    """
    found: dict[int, psutil.Process] = {}
    # Oldest first, so that parents come before their children.
    for process in sorted(psutil.process_iter(), key=_started_s):
        # Processes of other users cannot be read, and are not ours.
        with contextlib.suppress(psutil.Error, OSError):
            if process.status() != psutil.STATUS_ZOMBIE and (
                process.ppid() in found or os.getsid(process.pid) in found or process.environ().get(MARK) == str(folder)
            ):
                found[process.pid] = process
    found.pop(os.getpid(), None)
    return list(found.values())


def ray_lives(folder: Path) -> bool:
    """Returns True if the Ray with this temporary folder accepts drivers, that is, its control store runs."""
    return has_control_store(processes_of(folder))


def has_control_store(processes: Iterable[psutil.Process]) -> bool:
    """Returns True if one of these processes is the control store of a Ray. A Ray without it runs no jobs."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            if process.name().startswith(GCS_PROCESS):
                return True
    return False


def gcs_addresses_of(processes: Iterable[psutil.Process]) -> set[str]:
    """Returns the addresses, for drivers, of the Rays to which these processes belong."""
    found: set[str] = set()
    for process in processes:
        with contextlib.suppress(psutil.Error):
            words = " ".join(process.cmdline()).split()
            found.update(word.removeprefix(GCS_ADDRESS) for word in words if word.startswith(GCS_ADDRESS))
    return found


def _started_s(process: psutil.Process) -> float:
    try:
        return float(process.create_time())
    except psutil.Error:
        return math.inf


def held_ports(count: int) -> dict[int, socket.socket]:
    """Finds free ports, and returns each with a socket that holds it.

    Until the socket is closed, only servers that reuse addresses, as all of Ray's do, can listen on its port. Only
    Linux lets them listen, so on other systems the sockets are already closed.
    """
    found: dict[int, socket.socket] = {}
    for port in random.SystemRandom().sample(FREE_PORTS, len(FREE_PORTS)):
        holder = socket.socket()
        try:
            holder.bind(("", port))
        except OSError:
            holder.close()
            continue
        # Set only after bind, so that of two processes that look for ports only one gets this port.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if sys.platform != "linux":
            holder.close()
        found[port] = holder
        if len(found) == count:
            return found
    for holder in found.values():
        holder.close()
    raise ResourceError(f"this machine has no {count} free ports in {FREE_PORTS.start}–{FREE_PORTS.stop - 1}")


def free_ports(count: int) -> list[int]:
    """Returns ports that are free now."""
    held = held_ports(count)
    for holder in held.values():
        holder.close()
    return [*held]


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def holder_of(port: int) -> str:
    """Returns the id and command line of the process that listens at a port of this machine, for messages."""
    process = _listener(port)
    if process is None:
        return "a process of another user"
    with contextlib.suppress(psutil.Error):
        return f"process {process.pid} ({shorten(process.cmdline())})"
    return f"process {process.pid}"


def gcs_address_at(dashboard_port: int) -> str | None:
    """Returns the address, for drivers, of the Ray whose dashboard listens at this port of this host, or None."""
    process = _listener(dashboard_port)
    return next(iter(gcs_addresses_of([process])), None) if process is not None else None


def agent_clash(dashboard_port: int) -> str | None:
    """Returns why the Ray whose dashboard listens at this port of this host accepts no jobs; None if not known.

    The agent's port is in the command line of the raylet; the agent replaces its own command line.
    """
    address = gcs_address_at(dashboard_port)
    for process in psutil.process_iter() if address is not None else ():
        with contextlib.suppress(psutil.Error):
            command = " ".join(process.cmdline())
            port = AGENT_PORT.search(command)
            if f"{GCS_ADDRESS}{address}" not in command or port is None:
                continue
            holder = _listener(int(port[1]))
            if holder is not None and process not in holder.parents():
                return f"port {port[1]} is taken by {holder_of(int(port[1]))}"
    return None


def is_own_host(host: str) -> bool:
    """Returns True if a host name or an address is this machine's."""
    try:
        addresses = {str(item[4][0]) for item in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    own = {item.address.partition("%")[0] for items in psutil.net_if_addrs().values() for item in items}
    return any(address.startswith("127.") for address in addresses) or not own.isdisjoint(addresses)


def shorten(command: Sequence[str], limit: int = 120) -> str:
    """Returns a command as one line, truncated to `limit` characters."""
    text = " ".join(command)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _listener(port: int) -> psutil.Process | None:
    with contextlib.suppress(psutil.Error, OSError):  # macOS without root
        for connection in psutil.net_connections(kind="tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid is not None:
                return psutil.Process(connection.pid)
    return None


def with_parent(parent: int, command: Sequence[str]) -> None:
    """Executes a command; on Linux, it gets SIGTERM when the parent ends, even by SIGKILL."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() == parent:
        os.execv(command[0], [*command])


@contextlib.contextmanager
def local_ray(
    *, num_cpus: int, environment: Mapping[str, str], meanwhile: Callable[[], None] = lambda: None
) -> Iterator[LocalRay]:
    """Runs a Ray while the block runs; keeps the Ray's folder, for its logs, if the block fails.

    StoppedError is not a failure. `meanwhile` is called while Ray starts.
    """
    ray = start_ray(num_cpus=num_cpus, environment=environment, meanwhile=meanwhile)
    failed = False
    try:
        yield ray
    except Exception as error:
        failed = not isinstance(error, StoppedError)
        raise
    finally:
        if failed:
            stop_ray(ray.folder)
        else:
            ray.stop()


if __name__ == "__main__":
    with_parent(int(sys.argv[1]), sys.argv[2:])
