"""What the endpoints work with, and how each finds it and the user who asks."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, cast

from fastapi import Depends, Request

from jobs.ledger import Ledger
from jobs.scheduler.limits import QueuesConfig
from jobs.service.operations import Service


@dataclass(frozen=True)
class Backend:
    """Everything behind the API.

    Attributes:
        service: The verbs.
        ledger: For tokens, counts and hours.
        queues: Caps, to be shown.
        uploads: Folder for packages that are still coming in; on the same disk as the store of packages.
        holds_lease: Whether this service drives the runs now.
    """

    service: Service
    ledger: Ledger
    queues: QueuesConfig
    uploads: Path
    holds_lease: Callable[[], bool]


def backend_of(request: Request) -> Backend:
    """The app's backend."""
    return cast(Backend, request.app.state.backend)


def operations_of(request: Request, backend: Annotated[Backend, Depends(backend_of)]) -> Service:
    """The verbs, asked by the user whom the gate has let in."""
    return backend.service.as_user(request.state.user)


Behind = Annotated[Backend, Depends(backend_of)]
Asked = Annotated[Service, Depends(operations_of)]
