"""The backend, and the dependencies by which endpoints get it and the service."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, cast

from fastapi import Depends, Request

from jobs.ledger import Ledger
from jobs.scheduler.limits import QueuesConfig
from jobs.service.service import Service


@dataclass(frozen=True)
class Backend:
    """What the endpoints use.

    Attributes:
        service: The operations.
        ledger: For tokens, counts and usage.
        queues: The queues' limits.
        uploads: Folder for incomplete uploads of packages; on the same disk as the package store.
        holds_lease: Whether this service holds the ledger's lease now.
    """

    service: Service
    ledger: Ledger
    queues: QueuesConfig
    uploads: Path
    holds_lease: Callable[[], bool]


def backend_of(request: Request) -> Backend:
    """The app's backend."""
    return cast(Backend, request.app.state.backend)


def service_of(request: Request, backend: Annotated[Backend, Depends(backend_of)]) -> Service:
    """The service, as the user of the request."""
    return backend.service.as_user(request.state.user)


BackendDep = Annotated[Backend, Depends(backend_of)]
ServiceDep = Annotated[Service, Depends(service_of)]
