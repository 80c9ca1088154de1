"""The backend, the dependencies that give endpoints the backend and the service, and the threads of endpoints."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, cast

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from fastapi import Depends, Request

from jobs.ledger import Ledger
from jobs.scheduler.limits import QueuesConfig
from jobs.service.service import Service

# Threads of each kind of request, so that requests of one kind that hang do not block the others: health checks,
# which wait for no other request; reads of logs, which a hanging dashboard may block; lists of runs, each of which
# uses several times the memory of its page; and reads of reports or score files, which may be large.
Kind = Literal["health", "logs", "lists", "folders"]
THREADS: Mapping[Kind, int] = {"health": 2, "logs": 20, "lists": 4, "folders": 2}
RequestThreads = dict[Kind, CapacityLimiter]

Result = TypeVar("Result")


def request_threads() -> RequestThreads:
    """Returns the threads of an app, all of them free."""
    return {kind: CapacityLimiter(number) for kind, number in THREADS.items()}


def in_threads(kind: Kind) -> Callable[[Callable[..., Result]], Callable[..., Awaitable[Result]]]:
    """Returns a decorator that runs an endpoint in the app's threads of a kind; the endpoint takes the `request`."""

    def decorate(endpoint: Callable[..., Result]) -> Callable[..., Awaitable[Result]]:
        @wraps(endpoint)
        async def run_in_threads(**given: Any) -> Result:
            return await run_sync(partial(endpoint, **given), limiter=given["request"].app.state.threads[kind])

        return run_in_threads

    return decorate


@dataclass(frozen=True)
class Backend:
    """Dependencies of the endpoints.

    Attributes:
        uploads: Folder for incomplete uploads of packages; on the same disk as the package store.
        holds_lease: Returns True if this service holds the ledger's lease now.
    """

    service: Service
    ledger: Ledger
    queues: QueuesConfig
    uploads: Path
    holds_lease: Callable[[], bool]
    threads: RequestThreads = field(default_factory=request_threads)


# FastAPI would run functions that are not async in one of the threads that requests share.
async def backend_of(request: Request) -> Backend:
    """Returns the app's backend."""
    return cast(Backend, request.app.state.backend)


async def service_of(request: Request, backend: Annotated[Backend, Depends(backend_of)]) -> Service:
    """Returns the service, acting as the user of the request."""
    return backend.service.as_user(request.state.user)


BackendDep = Annotated[Backend, Depends(backend_of)]
ServiceDep = Annotated[Service, Depends(service_of)]
