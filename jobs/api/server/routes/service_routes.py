"""What is asked of the service itself: hours used, queues, health, metrics."""

from importlib.metadata import version
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from pydantic import Field

from jobs.api.protocol import CLUSTERS, HEALTH, METRICS, QUEUES, USAGE
from jobs.api.server import openapi
from jobs.api.server.dependencies import Asked, Backend, Behind
from jobs.api.server.routes.run_routes import MOST_NAME, PRINTABLE, QueryString
from jobs.lifecycle import RunState
from jobs.model import Record, Usage, UsageBy
from jobs.scheduler.limits import Limits

router = APIRouter(tags=["service"])
public_router = APIRouter(tags=["service"])

# The year 3000, and well within what every database takes.
MOST_S = 32_503_680_000.0
# A number of an event that is never reached; asking for what comes after it costs a look into an index.
NEVER = 2**62


class UsageQuery(QueryString):
    """Which hours are summed up."""

    by: UsageBy = Field("user", description="What to sum over. With `tag`, a run with two tags counts for both.")
    since_s: float | None = Field(
        None, ge=0, le=MOST_S, allow_inf_nan=False, description="Only what lies after this time. Seconds since 1970."
    )
    run_id: str | None = Field(None, pattern=PRINTABLE, max_length=MOST_NAME, description="Only of this run.")


class QueueView(Record):
    """A queue and what is in it.

    Attributes:
        name: Its name.
        limits: Caps of the whole queue. null: the queue is not configured any more, but has runs.
        per_user: Caps of each user in it.
        runs: Number of its runs by state; states without runs are left out.
        waiting: How many wait to be admitted.
        holding: How many hold their gang.
    """

    name: str
    limits: Limits | None
    per_user: Limits | None
    runs: dict[RunState, int]
    waiting: int
    holding: int


class QueuesView(Record):
    """All queues.

    Attributes:
        patience_s: A run that has waited longer goes before all that have not.
        queues: In order of names.
    """

    patience_s: float
    queues: list[QueueView]


class ClusterView(Record):
    """A Ray cluster of the service.

    Attributes:
        address: URL of its dashboard, as `job.address` names it.
    """

    address: str


class ClustersView(Record):
    """All clusters.

    Attributes:
        clusters: The first is for runs that name none.
    """

    clusters: list[ClusterView]


class Health(Record):
    """Whether the service works.

    Attributes:
        status: `ok`: the ledger's database answers.
        holds_lease: Whether this service drives the runs. Of several on one ledger one does; all answer.
        version: Rayscribe's.
    """

    status: str
    holds_lease: bool
    version: str


NO_LIMITS = {"max_gpus": None, "max_cpus": None, "max_running": None}
QUEUE = {
    "name": "default",
    "limits": {"max_gpus": 16.0, "max_cpus": None, "max_running": None},
    "per_user": NO_LIMITS,
    "runs": {"QUEUED": 3, "TRAINING": 2, "SUCCEEDED": 40},
    "waiting": 3,
    "holding": 2,
}


@router.get(
    USAGE,
    summary="Sum up GPU-hours and CPU-hours",
    responses={200: openapi.example([openapi.USAGE], "Sums, in order of keys."), **openapi.errors(404, 422)},
)
def get_usage(query: Annotated[UsageQuery, Query()], asked: Asked) -> list[Usage]:
    """Sums up what attempts have held, from their beginning to their end; those that live count up to now."""
    return asked.usage(query.by, since_s=query.since_s, run_id=query.run_id)


@router.get(
    QUEUES,
    summary="List queues",
    responses={200: openapi.example({"patience_s": 21600.0, "queues": [QUEUE]}, "All queues."), **openapi.errors()},
)
def list_queues(behind: Behind) -> QueuesView:
    """Lists the queues with their caps and the number of their runs in each state."""
    return queues_of(behind)


@router.get(
    CLUSTERS,
    summary="List clusters",
    responses={
        200: openapi.example({"clusters": [{"address": "http://ray-head:8265"}]}, "All clusters."),
        **openapi.errors(),
    },
)
def list_clusters(asked: Asked) -> ClustersView:
    """Lists the Ray clusters that runs may name; the first is for those that name none."""
    return ClustersView(clusters=[ClusterView(address=address) for address in asked.clusters()])


@router.get(
    METRICS,
    summary="Metrics for Prometheus",
    response_class=Response,
    responses={
        200: {
            "description": "Prometheus's text format.",
            "content": {"text/plain": {"schema": {"type": "string"}, "example": 'rayscribe_queue_length{queue="a"} 3'}},
        },
        **openapi.errors(),
    },
)
def get_metrics(request: Request) -> Response:
    """Gives runs, queue lengths, waiting times, attempts by cause, GPU-hours and CPU-hours, as the ledger has them."""
    registry: CollectorRegistry = request.app.state.registry
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


@public_router.get(
    HEALTH,
    summary="Ask whether the service works",
    responses={
        200: openapi.example({"status": "ok", "holds_lease": True, "version": "0.1.0"}, "It works."),
        **{status: item for status, item in openapi.errors().items() if status != 401},
    },
)
def get_health(behind: Behind) -> Health:
    """Answers 200 where the ledger's database answers too, 503 where it does not. Needs no token."""
    behind.ledger.events(None, after=NEVER, limit=1)
    return Health(status="ok", holds_lease=behind.holds_lease(), version=version("rayscribe"))


def queues_of(behind: Backend) -> QueuesView:
    """The queues that are configured, and those that have runs all the same."""
    counts = behind.ledger.usage.runs()
    configured = behind.queues.queues
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
    return QueuesView(patience_s=behind.queues.patience_s, queues=views)
