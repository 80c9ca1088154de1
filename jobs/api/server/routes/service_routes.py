"""Usage, queues, clusters, metrics and health of the service."""

from importlib.metadata import version
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from pydantic import Field

from jobs.api.protocol import CLUSTERS, HEALTH, METRICS, QUEUES, USAGE
from jobs.api.server.dependencies import BackendDep, ServiceDep, in_threads
from jobs.api.server.routes.run_routes import MAX_NAME, PRINTABLE, QueryString
from jobs.ledger import Ledger
from jobs.model import Record, RunState, Usage, UsageBy
from jobs.scheduler.limits import Limits, QueuesConfig

router = APIRouter(tags=["service"])
public_router = APIRouter(tags=["service"])

# The year 3000, and well within what every database accepts.
MAX_S = 32_503_680_000.0
# Larger than any event's number, so that the query only reads an index.
NEVER = 2**62


class UsageQuery(QueryString):
    """Grouping and filters of usage."""

    by: UsageBy = Field("user", description="What to group by. With `tag`, a run with two tags counts for both.")
    since_s: float | None = Field(
        None, ge=0, le=MAX_S, allow_inf_nan=False, description="Only usage after this time. Seconds since 1970."
    )
    run_id: str | None = Field(None, pattern=PRINTABLE, max_length=MAX_NAME, description="Only this run.")


class QueueView(Record):
    """A queue, with its number of runs by state (omits states without runs), of waiting runs, and of runs with a gang.

    Limits are for all users together, and per user; null for a queue that is no longer configured, but has runs.
    """

    name: str
    limits: Limits | None
    per_user: Limits | None
    runs: dict[RunState, int]
    waiting: int
    holding: int


class QueuesView(Record):
    """All queues, sorted by name, and the starvation timeout in seconds: a run that has waited longer goes first."""

    patience_s: float
    queues: list[QueueView]


class ClustersView(Record):
    """URLs of the dashboards of all Ray clusters, as in `job.address`; the first is the default."""

    clusters: list[str]


class Health(Record):
    """Health of the service: `ok` if its database responds. One of the services on a ledger holds the lease."""

    status: str
    holds_lease: bool
    version: str


@router.get(USAGE, summary="Get GPU-hours and CPU-hours")
def get_usage(query: Annotated[UsageQuery, Query()], service: ServiceDep) -> list[Usage]:
    """Sums the resources that attempts have held from start to end; active attempts count up to now."""
    return service.usage(query.by, since_s=query.since_s, run_id=query.run_id)


@router.get(QUEUES, summary="List queues")
def list_queues(backend: BackendDep) -> QueuesView:
    """Lists the queues with their limits and the number of runs in each state."""
    return queues_view(backend.ledger, backend.queues)


def queues_view(ledger: Ledger, queues: QueuesConfig) -> QueuesView:
    """Returns the configured queues, and other queues that have runs."""
    counts = ledger.usage.runs()
    configured = queues.queues
    views = []
    for name in sorted({*configured, *(queue for queue, _ in counts)}):
        part = configured.get(name)
        runs = {state: counts[name, state] for state in RunState if (name, state) in counts}
        views.append(
            QueueView(
                name=name,
                limits=Limits(**part.model_dump(exclude={"per_user"})) if part is not None else None,
                per_user=part.per_user if part is not None else None,
                runs=runs,
                waiting=sum(number for state, number in runs.items() if state.waiting),
                holding=sum(number for state, number in runs.items() if state.holding),
            )
        )
    return QueuesView(patience_s=queues.patience_s, queues=views)


@router.get(CLUSTERS, summary="List clusters")
def list_clusters(service: ServiceDep) -> ClustersView:
    """Lists the Ray clusters that runs may name; the first is the default."""
    return ClustersView(clusters=service.clusters())


@router.get(
    METRICS,
    summary="Metrics for Prometheus",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
def get_metrics(request: Request) -> Response:
    """Returns metrics of runs, queue lengths, waiting times, attempts by cause, GPU-hours and CPU-hours."""
    registry: CollectorRegistry = request.app.state.registry
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


@public_router.get(HEALTH, summary="Check the health of the service")
@in_threads("health")
def get_health(request: Request, backend: BackendDep) -> Health:
    """Responds with 200 if the ledger's database responds, otherwise with 503. Needs no token."""
    backend.ledger.events(None, after=NEVER, limit=1)
    return Health(status="ok", holds_lease=backend.holds_lease(), version=version("rayscribe"))
