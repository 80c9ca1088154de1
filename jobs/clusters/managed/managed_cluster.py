"""The operations on a cluster that was started from this machine."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from jobs.addresses import cluster_address
from jobs.clusters.managed.cluster_record import Record, loopback_port
from jobs.clusters.managed.ssh_tunnel import KeyChange, Tunnel
from jobs.clusters.ray_jobs import RayJobs
from jobs.errors import ClusterError
from trainers.config.wording import counted


@dataclass(frozen=True)
class ClusterStatus:
    """State of a cluster: local or ray-up; up, starting (not up yet, or its start failed), ended, or unreachable.

    Living nodes, their resources, and running jobs and drivers are None if the cluster does not respond. The text
    describes them for people, or says why they are unknown.
    """

    name: str
    kind: str
    state: str
    nodes: int | None = None
    resources: dict[str, float] | None = None
    jobs: int | None = None
    dashboard: str | None = None
    text: str = ""


class ManagedCluster(ABC):
    """One cluster, wherever its Ray runs."""

    record: Record

    @property
    def dashboard(self) -> str | None:
        """URL of the dashboard if it listens on this machine; None if it needs a forwarded port."""
        return None

    def has_dashboard_at(self, address: str) -> bool:
        """Returns True if a URL is that of `dashboard`, by any name of loopback."""
        port = loopback_port(address)
        return port is not None and port == loopback_port(self.dashboard or "")

    @abstractmethod
    def check_machine(self) -> None:
        """Raises ClusterError for a cluster of another machine."""

    @abstractmethod
    def has_ended(self) -> bool:
        """Returns True if the cluster is known to have no running Ray. Changes nothing."""

    @property
    @abstractmethod
    def ended_text(self) -> str:
        """Message for an ended cluster: what that means, and what to do."""

    @abstractmethod
    def down(self, *, say: Callable[[str], None], force: bool = False) -> None:
        """Ends the cluster and removes its record; with `force` even if a part of it may still run.

        Raises:
            ClusterError: something may still run; the record is kept, and the call may be repeated.
        """

    @abstractmethod
    def attach_command(self, command: str | None, *, terminal: bool) -> list[str]:
        """Returns the command line of a shell on the head, or of a command there; `terminal` requests a terminal.

        Raises:
            ConflictError: this machine is its head.
            ClusterError: it is not up yet.
        """

    @abstractmethod
    def tunnel(self, port: int | None) -> Tunnel:
        """Returns a forwarded port (None: any) to the dashboard, not open yet; raises as `attach_command`."""

    @abstractmethod
    def key_change(self) -> KeyChange:
        """Returns the remembered SSH host key of the head and the one that it shows now; raises as `attach_command`."""

    def status(self) -> ClusterStatus:
        record, dashboard = self.record, self.dashboard
        try:
            cluster = RayJobs(cluster_address(record.name))
            capacity, jobs = cluster.capacity({}), len(cluster.working_jobs())
        except ClusterError as error:
            if self.has_ended():
                return ClusterStatus(record.name, record.kind, "ended", text=self.ended_text)
            state = "unreachable" if record.state == "up" else record.state
            return ClusterStatus(record.name, record.kind, state, dashboard=dashboard, text=str(error))
        nodes = len(capacity.nodes)
        held = ", ".join(f"{value:g} {name}" for name, value in capacity.total.items() if name in ("CPU", "GPU", "HPU"))
        text = f"{counted(nodes, 'node')} · {held} · {counted(jobs, 'working job')}"
        if dashboard is not None:
            text += f" · {dashboard}"
        return ClusterStatus(record.name, record.kind, "up", nodes, dict(capacity.total), jobs, dashboard, text)
