"""Records of clusters that were started from this machine: files below ~/.rayscribe/clusters.

NAME.json          connection data; 0600
NAME.token         token, generated once; 0600, never printed
NAME.yaml          config for `ray up`
NAME.known_hosts   SSH host key of the head, trusted on first use
NAME/              logs of starting and ending the cluster, its nodes' logs, the lock of the active command,
                   temporary files of Ray's own commands, and `taken-down` from the cluster's end to its next start

One command at a time starts or ends a cluster; if it gets SIGTERM or SIGHUP, it also ends what it has started.
"""

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from jobs.addresses import address_in_environment, cluster_address, cluster_name, is_loopback, is_loopback_url
from jobs.errors import ClusterError, ConflictError, NotFoundError
from trainers.distributed.local_ray import ray_lives
from trainers.distributed.machine import home, host_of, make_private_folder, sees_processes_of, was_restarted
from trainers.errors import ConfigError

NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,60}[A-Za-z0-9])?")
TOKEN_BYTES = 32
TAKEN_DOWN = "taken-down"
DASHBOARD_PORT = 8265
# Shells report a command that was ended by a signal with 128 + signal.
SIGNAL_EXIT = 128


class SshTarget(BaseModel):
    """SSH access to the head; without `private_key`, a path on this machine, ssh chooses the key."""

    model_config = ConfigDict(frozen=True)

    host: str
    user: str
    private_key: str | None = None
    proxy_command: str | None = None


class ClusterRecord(BaseModel):
    """Fields that the records of all clusters share.

    Attributes:
        state: `up`, or `starting` if the cluster is not up yet or the start failed.
        idle_stop_minutes: Minutes without jobs after which the cluster ends itself; None for never.
        dashboard: URL of the dashboard on this machine; None if it needs a forwarded port, or is not up yet.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    created_s: float
    state: Literal["starting", "up"] = "starting"
    idle_stop_minutes: int | None = None
    dashboard: str | None = None

    @property
    def files(self) -> Path:
        return clusters_folder() / self.name

    @property
    def temporary_files(self) -> Path:
        """Folder, with mode 0700, of files that Ray's own commands keep until the cluster ends."""
        return self.files / "tmp"

    @property
    def path(self) -> Path:
        return clusters_folder() / f"{self.name}.json"

    @property
    def token_path(self) -> Path:
        """The file with the cluster's token."""
        return clusters_folder() / f"{self.name}.token"

    @property
    def config_path(self) -> Path:
        """The file that `ray up` reads."""
        return clusters_folder() / f"{self.name}.yaml"

    @property
    def known_hosts_path(self) -> Path:
        return clusters_folder() / f"{self.name}.known_hosts"

    def write(self) -> None:
        write_private(self.path, self.model_dump_json(indent=2))
        (self.files / TAKEN_DOWN).unlink(missing_ok=True)

    def forget(self, *, taken_down: bool = False) -> None:
        """Removes all files but the logs; with `taken_down`, records until the next start that all jobs have ended."""
        if taken_down:
            write_private(self.files / TAKEN_DOWN, "")
        for path in (self.token_path, self.config_path, self.known_hosts_path, self.path):
            path.unlink(missing_ok=True)
        shutil.rmtree(self.temporary_files, ignore_errors=True)


class LocalRecord(ClusterRecord):
    """A local Ray, on one machine.

    Attributes:
        folder: Its temporary folder; None before its first process.
        machine: The machine that started it, see `machine.py`; None for this one.
        release: Version of Rayscribe that started it, and that its node has; None if not known.
        address: Address for drivers; None while Ray starts.
    """

    kind: Literal["local"] = "local"
    folder: Path | None = None
    machine: str | None = None
    release: str | None = None
    address: str | None = None

    @property
    def is_elsewhere(self) -> bool:
        """True if it runs on another host or in another container, whose processes cannot be seen from here."""
        machine = self.machine
        return machine is not None and not (sees_processes_of(machine) or was_restarted(machine))

    def check_machine(self) -> None:
        """Raises ClusterError if the cluster runs on another machine."""
        if self.is_elsewhere:
            raise ClusterError(
                f"{cluster_address(self.name)} was started on {host_of(self.machine or '')}, another host or "
                f"container, whose processes cannot be seen from here: work there, or remove {self.path} if that "
                "machine no longer exists"
            )

    def ray_lives(self) -> bool:
        """Returns True if its Ray runs; raises like `check_machine`."""
        self.check_machine()
        return self.folder is not None and ray_lives(self.folder)


class RayUpRecord(ClusterRecord):
    """A cluster of `ray up`; its dashboard is on the head's loopback. `ssh` is None until the head is known."""

    kind: Literal["ray-up"] = "ray-up"
    ssh: SshTarget | None = None


Record = LocalRecord | RayUpRecord
RECORDS: TypeAdapter[Record] = TypeAdapter(Annotated[Record, Field(discriminator="kind")])


def clusters_folder() -> Path:
    """Returns the folder of all records."""
    return home() / "clusters"


def was_taken_down(name: str) -> bool:
    """Returns True if the cluster of this name was ended from here, and has not been started again."""
    return (clusters_folder() / name / TAKEN_DOWN).exists()


def check_name(name: str) -> str:
    """Returns the name; raises ConfigError if it cannot be a file name."""
    if not NAME.fullmatch(name):
        raise ConfigError(f"{name!r} cannot name a cluster: use letters, digits, ., _ and -, at most 62")
    return name


def find_record(name: str) -> Record | None:
    """Returns the record of this name; None if there is none.

    Raises:
        ConfigError: its file cannot be read.
    """
    path = clusters_folder() / f"{check_name(name)}.json"
    try:
        return RECORDS.validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise ConfigError(f"{path} cannot be read ({error}): remove it, and start the cluster again") from error


def read_record(name: str) -> Record:
    """Returns the record of this name; raises NotFoundError if there is none."""
    record = find_record(name)
    if record is None:
        known = ", ".join(item.name for item in all_records()) or "none"
        raise NotFoundError(
            f"no cluster is named {name} on this machine (known: {known}): start it, {start_commands(name)}"
        )
    return record


def start_commands(name: str) -> str:
    """Returns the commands that start a cluster of either kind, for a message."""
    return f"rayscribe cluster up --local --name {name}, or, with a file of `ray up`, rayscribe cluster up FILE"


def the_only_record() -> Record:
    """Returns the record of the only cluster; raises NotFoundError if there is none or more than one."""
    found = all_records()
    if len(found) == 1:
        return found[0]
    if not found:
        raise NotFoundError("no cluster was started from this machine: start one with `rayscribe cluster up --local`")
    raise NotFoundError(f"name one of the clusters {', '.join(record.name for record in found)}")


def default_address() -> str | None:
    """Returns the default cluster of runs: RAY_API_SERVER_ADDRESS, RAY_ADDRESS, or the only recorded one, if any."""
    if (in_environment := address_in_environment()) is not None:
        return in_environment
    found = all_records()
    return cluster_address(found[0].name) if len(found) == 1 else None


def is_local_address(address: str) -> bool:
    """Returns True if the cluster's jobs see this machine's files, judged by its address."""
    name = cluster_name(address)
    if name is None:
        return is_loopback_url(address)
    record = find_record(name)
    return isinstance(record, LocalRecord) and not record.is_elsewhere


def record_at(address: str) -> LocalRecord | None:
    """Returns the running local Ray whose dashboard, or address for drivers, is the given address; None without one.

    If a Ray has ended, another process may listen at its port, and must not get its token.
    """
    port = loopback_port(address)
    if port is None:
        return None
    for item in (record for record in all_records() if isinstance(record, LocalRecord)):
        ports = map(loopback_port, (item.dashboard or "", item.address or ""))
        if port in ports and not item.is_elsewhere and item.ray_lives():
            return item
    return None


def loopback_port(address: str) -> int | None:
    """Returns the port of a URL or of host:port if the host is a name of this machine's loopback, otherwise None."""
    try:
        parts = urlsplit(address if "://" in address else f"//{address}")
        return parts.port if is_loopback(parts.hostname or "") else None
    except ValueError:
        return None


def all_records() -> list[Record]:
    """Returns the records of all clusters, sorted by name."""
    found = (find_record(path.stem) for path in sorted(clusters_folder().glob("*.json")))
    return [record for record in found if record is not None]


def ensure_token(name: str) -> Path:
    """Returns the file of the cluster's token, which is generated once."""
    path = clusters_folder() / f"{name}.token"
    if not path.exists():
        write_private(path, secrets.token_hex(TOKEN_BYTES))
    path.chmod(0o600)
    return path


def write_private(path: Path, text: str) -> None:
    """Writes a file atomically; only this user can read it."""
    make_private_folder(path.parent)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    partial.replace(path)


@contextlib.contextmanager
def lock_cluster(name: str) -> Iterator[None]:
    """Locks a cluster while it is started or ended; SIGTERM and SIGHUP end the block by an exception.

    Raises:
        ConflictError: another command of this user has the lock.
        ConfigError: the name is not valid for a cluster.
        SystemExit: a signal was received.
    """
    folder = clusters_folder() / check_name(name)
    make_private_folder(folder)
    with (folder / "lock").open("a", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConflictError(
                f"another `rayscribe cluster up` or `down` is already running for {name}: wait for it, or stop it"
            ) from None
        in_main = threading.current_thread() is threading.main_thread()
        caught = (signal.SIGTERM, signal.SIGHUP) if in_main else ()
        former = {number: signal.signal(number, _raise) for number in caught}
        try:
            yield
        finally:
            for number, handler in former.items():
                signal.signal(number, handler)


def _raise(number: int, frame: FrameType | None) -> None:
    raise SystemExit(SIGNAL_EXIT + number)
