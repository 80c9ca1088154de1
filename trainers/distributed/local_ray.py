"""A Ray of this machine alone, started by `ray start`: ports, token and temporary folder of its own.

`ray.init` takes no port for the dashboard's agent, so two Rays that it starts on one machine clash there, and jobs of
the second one find no agent. `ray stop` ends every Ray of the machine; here each is ended by its own processes.
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
# Everything that listens except the workers, which take any free port.
PORTS = (
    "port",
    "node-manager-port",
    "object-manager-port",
    "dashboard-port",
    "dashboard-agent-listen-port",
    "dashboard-agent-grpc-port",
    "runtime-env-agent-port",
    "ray-client-server-port",
    "metrics-export-port",
)
# Below Linux's range for outgoing connections, one of which could take a port between our look and Ray's start.
FREE_PORTS = range(20_000, 32_000)
# Ray's own temporary folder in ours, where RAY_TMPDIR has it, too. Ray opens it to all users, and what its drivers and
# workers run lies in it; ours is closed to others.
RAYS_OWN, SESSION = "ray", "session_latest"
# A socket's path has 107 bytes at most, of which Ray's own part takes about 70, and the name of its folder 4.
MAX_FOLDER_BYTES = 32
START_TIMEOUT_S = 180.0
POLL_S = 0.05
TRIES = 3
# What `ray start` ends with where its raylet comes up later than it waits, and the raylet where its agents do.
LATE, GAVE_UP = "timed out during startup", re.compile(r"Timed out waiting for file \S+")
# A raylet waits for 15 s until its agents have written their ports to files, which nothing changes: too short on a
# machine at work. All of these ports are chosen here.
PORT_FILES = {
    "dashboard_agent_listen_port": "dashboard-agent-listen-port",
    "metrics_agent_port": "dashboard-agent-grpc-port",
    "metrics_export_port": "metrics-export-port",
    "runtime_env_agent_port": "runtime-env-agent-port",
}
# Of its control store, with the node's id.
FIRST_PORT_FILE = "gcs_server_port_"
LOG_LINES = 15
PR_SET_PDEATHSIG = 1
# Among the arguments of a dashboard.
GCS_ADDRESS = "--gcs-address="
AGENT_PORT = re.compile(r"--listen-port=(\d+)")
# All processes of a Ray inherit its temporary folder in this variable; it tells them from another Ray's.
MARK = "RAY_TMPDIR"
GCS_PROCESS = "gcs_server"


@dataclass(frozen=True)
class LocalRay:
    """A Ray that was started here: host:port that drivers join, the URL of its dashboard, which takes jobs.

    Its temporary folder lies in `folder`, closed to other users. Ports are by the options of `ray start`; empty where
    they are no longer known.
    """

    address: str
    dashboard: str
    folder: Path
    ports: Mapping[str, int] = field(default_factory=dict)

    def wait_for_agent(self) -> None:
        """Waits until it takes jobs: its dashboard's agent listens. Ray looks at this port last.

        Raises:
            ResourceError: names the port that is taken and by what, or has the last lines of its log.
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
    """Starts a head on loopback, with all logical CPUs and any port of the dashboard where none are given.

    The token is in its environment. Where it does not outlive this process, it ends with it, however that ends. The
    usual port is taken where any will do, and this one is free. `announce` is called with its temporary folder before
    its first process starts, and `meanwhile` while it starts, at its first try; where that fails, nothing is left.

    Raises:
        ResourceError: it did not start; names the port that is taken and by what, or has the last lines of its log.
    """
    if dashboard_port is not None and not _is_free(dashboard_port):
        raise ResourceError(f"port {dashboard_port} is taken by {holder_of(dashboard_port)}: choose another")
    for left in reversed(range(TRIES)):
        held = held_ports(len(PORTS))
        ports = dict(zip(PORTS, held, strict=True))
        if dashboard_port is not None:
            ports["dashboard-port"] = dashboard_port
        elif usual_dashboard_port is not None and _is_free(usual_dashboard_port):
            ports["dashboard-port"] = usual_dashboard_port
        folder = Path(tempfile.mkdtemp(prefix="rs-", dir=_parent_folder()))
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
        # Another program was faster, or the machine is loaded; where the log says otherwise, another try is in vain.
        if left == 0 or not ("is taken by" in reason or LATE in reason or GAVE_UP.search(reason)):
            raise ResourceError(f"Ray did not start on this machine: {reason}")
        print_line(f"Ray did not start on this machine, and is started again with other ports: {reason}", sys.stderr)
        shutil.rmtree(folder, ignore_errors=True)
    raise AssertionError("unreachable")


def _parent_folder() -> str:
    parent = os.environ.get(MARK) or tempfile.gettempdir()
    return parent if len(os.fsencode(parent)) + len("/rs-12345678") <= MAX_FOLDER_BYTES else "/tmp"


def ray_command(*arguments: str) -> list[str]:
    """A command line of Ray's own, with the packages of this interpreter."""
    return [sys.executable, "-P", "-m", "ray.scripts.scripts", *arguments]


def without_ray_settings() -> dict[str, str]:
    """This process's environment without Ray's variables: the settings of another cluster mean nothing to a new one."""
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
    # A * means every host only where it is alone.
    unproxied = unproxied if unproxied.strip() == "*" else ",".join(filter(None, (unproxied, LOOPBACK, "localhost")))
    variables = {
        **environment,
        # What asks the dashboard from within, as Ray Train does whether a training goes on, asks no proxy of the user.
        **dict.fromkeys(("no_proxy", "NO_PROXY"), unproxied),
        MARK: str(folder),
        # A job uses the same `python` as this process.
        "PATH": f"{binaries}{os.pathsep}{environment.get('PATH', os.defpath)}",
        # Nobody waits for a node to drain when the only one ends.
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
        # How long it waits for its own control store, which comes late on a loaded machine; by default 20 s or so.
        "RAY_gcs_server_port_wait_time_s": f"{START_TIMEOUT_S:.0f}",
        # The same of its agents, whose ports it knows before they listen, see `_write_port_files`.
        "RAY_agent_register_timeout_ms": f"{1000 * START_TIMEOUT_S:.0f}",
    }
    with (folder / "start.log").open("wb") as log:
        # A session of its own, so that Ctrl-C in the terminal reaches the driver alone, which ends it in order.
        return subprocess.Popen(
            # Ray starts modules of its own, which Python looks for in the working directory first: in /tmp, anybody's.
            command,
            cwd=folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _comes_up(process: "subprocess.Popen[bytes]", folder: Path, ports: Mapping[str, int]) -> bool:
    """Whether drivers may join; it needs no agent for that."""
    end = time.monotonic() + START_TIMEOUT_S
    while process.poll() is None and time.monotonic() < end and _gave_up(folder) is None:
        if not any(_is_free(ports[name]) for name in ("port", "node-manager-port")):
            return True
        time.sleep(POLL_S)
    return False


def _write_port_files(folder: Path, ports: Mapping[str, int]) -> None:
    """Writes the ports of its agents, as they do, once its control store has done so."""
    session, end = folder / RAYS_OWN / SESSION, time.monotonic() + START_TIMEOUT_S
    while folder.exists() and time.monotonic() < end:
        for first in session.glob(f"{FIRST_PORT_FILE}*"):
            node = first.name.removeprefix(FIRST_PORT_FILE)
            with contextlib.suppress(OSError):  # it has ended meanwhile
                for name, option in PORT_FILES.items():
                    part = session / f"{name}_{node}.part"
                    part.write_text(str(ports[option]))
                    part.rename(part.with_suffix(""))
            return
        time.sleep(POLL_S)


def _gave_up(folder: Path) -> str | None:
    """What its raylet has waited for in vain; None: it has not."""
    with contextlib.suppress(OSError):
        found = GAVE_UP.search((folder / RAYS_OWN / SESSION / "logs" / "raylet.err").read_text(errors="replace"))
        return found[0] if found is not None else None
    return None


def _reason(folder: Path, ports: Mapping[str, int]) -> str:
    """Which port another program holds, or what the log ends with."""
    ours = {process.pid for process in processes_of(folder)}
    for name, port in ports.items():
        holder = _listener(port)
        if holder is not None and holder.pid not in ours:
            return f"--{name}={port} is taken by {holder_of(port)}"
    if (gave_up := _gave_up(folder)) is not None:
        return f"its raylet gave up, as where a machine has too much to do: {gave_up}"
    with contextlib.suppress(OSError):
        lines = (folder / "start.log").read_text(errors="replace").splitlines()
        return f"{folder}/start.log ends with:\n" + "\n".join(lines[-LOG_LINES:])
    return f"it printed nothing within {START_TIMEOUT_S:.0f} s"


def stop_ray(folder: Path) -> None:
    """Ends all processes of the Ray with this temporary folder, at once: nobody else is on it."""
    while found := processes_of(folder):
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(found, timeout=POLL_S)


def processes_of(folder: Path) -> list[psutil.Process]:
    """The living processes of the Ray with this temporary folder, but for this one.

    Those that give themselves a title write it over their variables, so what was started by one of a Ray's is one, too,
    and what is of the session that one leads: where a raylet has ended, its agents are nobody's children.
    """
    found: dict[int, psutil.Process] = {}
    # Older ones come first, and with them those that started others.
    for process in sorted(psutil.process_iter(), key=_started_s):
        # Those of other users cannot be read, and are not ours.
        with contextlib.suppress(psutil.Error, OSError):
            if process.status() != psutil.STATUS_ZOMBIE and (
                process.ppid() in found or os.getsid(process.pid) in found or process.environ().get(MARK) == str(folder)
            ):
                found[process.pid] = process
    found.pop(os.getpid(), None)
    return list(found.values())


def ray_lives(folder: Path) -> bool:
    """Whether the Ray with this temporary folder takes drivers: its control store lives, not only a process it left."""
    return has_control_store(processes_of(folder))


def has_control_store(processes: Iterable[psutil.Process]) -> bool:
    """Whether one of these processes is the control store of a Ray, without which no Ray runs jobs."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            if process.name().startswith(GCS_PROCESS):
                return True
    return False


def gcs_addresses_of(processes: Iterable[psutil.Process]) -> set[str]:
    """What drivers join, of the Rays whose processes these are."""
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
    """Finds free ports, each with the socket that holds it.

    None but servers that reuse addresses, as all of Ray's do, may listen there until that is closed. Elsewhere than on
    Linux they could not either, and the ports are not held.
    """
    found: dict[int, socket.socket] = {}
    for port in random.SystemRandom().sample(FREE_PORTS, len(FREE_PORTS)):
        holder = socket.socket()
        try:
            holder.bind(("", port))
        except OSError:
            holder.close()
            continue
        # From now on, so that of two that look for ports only one gets it.
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
    """Finds ports that are free now."""
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
    """What listens at a port of this machine, for people: its process id and command line."""
    process = _listener(port)
    if process is None:
        return "a process that this user may not look at"
    with contextlib.suppress(psutil.Error):
        return f"process {process.pid} ({shorten(process.cmdline())})"
    return f"process {process.pid}"


def gcs_address_at(dashboard_port: int) -> str | None:
    """What drivers of the Ray whose dashboard listens at this port of this host join; None where none does."""
    process = _listener(dashboard_port)
    return next(iter(gcs_addresses_of([process])), None) if process is not None else None


def agent_clash(dashboard_port: int) -> str | None:
    """Why the Ray whose dashboard listens at this port of this host takes no jobs; None where that is not to be seen.

    Its raylet has the command line of the dashboard's agent, whose own is replaced by a title.
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
    """Whether a name or an address is this machine's."""
    try:
        addresses = {str(item[4][0]) for item in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    own = {item.address.partition("%")[0] for items in psutil.net_if_addrs().values() for item in items}
    return any(address.startswith("127.") for address in addresses) or not own.isdisjoint(addresses)


def shorten(command: Sequence[str], limit: int = 120) -> str:
    """A command line on one line."""
    text = " ".join(command)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _listener(port: int) -> psutil.Process | None:
    with contextlib.suppress(psutil.Error, OSError):  # macOS without root
        for connection in psutil.net_connections(kind="tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid is not None:
                return psutil.Process(connection.pid)
    return None


def with_parent(parent: int, command: Sequence[str]) -> None:
    """Becomes a command that gets SIGTERM when the parent ends, even by SIGKILL. Linux only; elsewhere it goes on."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() == parent:
        os.execv(command[0], [*command])


@contextlib.contextmanager
def local_ray(
    *, num_cpus: int, environment: Mapping[str, str], meanwhile: Callable[[], None] = lambda: None
) -> Iterator[LocalRay]:
    """A Ray that ends with the block; its folder stays where the block fails, for its logs.

    A stop on request is no failure. `meanwhile` is called while it starts.

    Raises:
        ResourceError: it did not start.
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
