"""Operations on a cluster that was started from this machine, both local ones and those of `ray up`."""

from collections.abc import Callable
from dataclasses import dataclass

from jobs.addresses import cluster_address
from jobs.clusters.managed import local_cluster, ray_up_cluster
from jobs.clusters.managed.cluster_record import LocalRecord, RayUpRecord, Record, loopback_port
from jobs.clusters.ray_jobs import RayJobs
from jobs.errors import ClusterError, ConflictError
from trainers.config.wording import counted


@dataclass(frozen=True)
class ClusterStatus:
    """State of a cluster: `up`, `starting` (not up yet, or its start failed), `ended` or `unreachable`.

    `kind` is `local` or `ray-up`. `nodes` (living), `resources` and `jobs` (with drivers) are None if the cluster does
    not respond. `text` describes them for people, or says why they are unknown.
    """

    name: str
    kind: str
    state: str
    nodes: int | None = None
    resources: dict[str, float] | None = None
    jobs: int | None = None
    dashboard: str | None = None
    text: str = ""


def has_dashboard_at(record: Record, address: str) -> bool:
    """Returns True if a URL is that of the cluster's dashboard on this machine, by any name of its loopback."""
    port = loopback_port(address)
    return port is not None and port == loopback_port(record.dashboard or "")


def has_ended(record: Record) -> bool:
    """Returns True if the cluster is known to have no running Ray. Changes nothing."""
    if isinstance(record, RayUpRecord):
        return ray_up_cluster.has_ended(record)
    # Processes of another machine cannot be seen.
    return not record.is_elsewhere and not record.ray_lives()


def ended_text(record: Record) -> str:
    """Returns the message for an ended cluster: what that means, and what to do."""
    if isinstance(record, LocalRecord):
        return f"its processes have ended; start it again: rayscribe cluster up --local --name {record.name}"
    return (
        "Ray no longer runs on its head, e.g. after an idle stop: start it again (rayscribe cluster up FILE), "
        f"or remove its record: rayscribe cluster down {record.name}"
    )


def down(record: Record, *, say: Callable[[str], None], force: bool = False) -> None:
    """Ends the cluster and removes its record; with `force`, even if a part of it may still run.

    Raises:
        ClusterError: something may still run; the record is kept, and the call may be repeated.
    """
    if isinstance(record, LocalRecord):
        local_cluster.down(record, say=say)
    else:
        ray_up_cluster.down(record, say=say, force=force)


def with_head(record: Record) -> RayUpRecord:
    """Returns the record for SSH access to the head.

    Raises:
        ConflictError: the cluster is local, so this machine is its head.
        ClusterError: the cluster is not up yet.
    """
    if isinstance(record, LocalRecord):
        raise ConflictError(f"{record.name} runs on this machine, so it needs no SSH")
    if record.ssh is None:
        raise ClusterError(f"{record.name} is not up yet: repeat `rayscribe cluster up`, which continues")
    return record


def status_of(record: Record) -> ClusterStatus:
    """Returns the state of a cluster, with its nodes and working jobs if its dashboard responds."""
    try:
        cluster = RayJobs(cluster_address(record.name))
        capacity, jobs = cluster.capacity({}), len(cluster.working_jobs())
    except ClusterError as error:
        if has_ended(record):
            return ClusterStatus(record.name, record.kind, "ended", text=ended_text(record))
        state = "unreachable" if record.state == "up" else record.state
        return ClusterStatus(record.name, record.kind, state, dashboard=record.dashboard, text=str(error))
    nodes = len(capacity.nodes)
    held = ", ".join(f"{value:g} {name}" for name, value in capacity.total.items() if name in ("CPU", "GPU", "HPU"))
    text = f"{counted(nodes, 'node')} · {held} · {counted(jobs, 'working job')}"
    if record.dashboard is not None:
        text += f" · {record.dashboard}"
    return ClusterStatus(record.name, record.kind, "up", nodes, dict(capacity.total), jobs, record.dashboard, text)
