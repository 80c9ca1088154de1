"""What `rayscribe cluster status` shows of a cluster."""

from dataclasses import dataclass

from jobs.addresses import cluster_address
from jobs.clusters.idle_stop import counted
from jobs.clusters.ray_jobs import RayJobs
from jobs.clusters.remembered.cluster_record import ClusterRecord
from jobs.clusters.remembered.up_down import has_ended
from jobs.errors import ClusterError


@dataclass(frozen=True)
class ClusterStatus:
    """One cluster.

    Attributes:
        name: Its name.
        kind: local or ray-up.
        state: up, starting (not up yet, or its start failed), ended, or unreachable.
        nodes: How many nodes are alive; None where it does not respond.
        resources: What they have together.
        jobs: How many jobs and drivers work on it; None where it does not respond.
        dashboard: URL of the dashboard of a local one.
        text: The same for people, or why it does not respond.
    """

    name: str
    kind: str
    state: str
    nodes: int | None = None
    resources: dict[str, float] | None = None
    jobs: int | None = None
    dashboard: str | None = None
    text: str = ""


def status_of(record: ClusterRecord) -> ClusterStatus:
    """Calls the cluster."""
    try:
        if record.kind == "local" and not record.ray_lives():
            text = f"its processes have ended; start it again: rayscribe cluster up --local --name {record.name}"
            return ClusterStatus(record.name, record.kind, "ended", text=text)
        cluster = RayJobs(cluster_address(record.name))
        capacity, jobs = cluster.capacity({}), len(cluster.working_jobs())
    except ClusterError as error:
        if record.state == "up" and has_ended(record):
            text = (
                "no Ray runs on its head any more, as after an idle stop: start it again (rayscribe cluster up FILE), "
                f"or forget it: rayscribe cluster down {record.name}"
            )
            return ClusterStatus(record.name, record.kind, "ended", text=text)
        state = "unreachable" if record.state == "up" else record.state
        return ClusterStatus(record.name, record.kind, state, dashboard=record.dashboard, text=str(error))
    nodes = len(capacity.nodes)
    held = ", ".join(f"{value:g} {name}" for name, value in capacity.total.items() if name in ("CPU", "GPU", "HPU"))
    text = f"{counted(nodes, 'node')} · {held} · {counted(jobs, 'working job')}"
    if record.dashboard is not None:
        text += f" · {record.dashboard}"
    return ClusterStatus(
        record.name, record.kind, "up", nodes, dict(capacity.total), jobs, dashboard=record.dashboard, text=text
    )
