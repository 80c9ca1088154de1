"""Opens a command's session: with a service over HTTP, or with this user's local ledger."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jobs.cli.completion import run_argument
from jobs.errors import ServiceError
from jobs.service.operations import Operations
from trainers.distributed.machine import home

if TYPE_CHECKING:
    from jobs.service.direct.all_runs import AllRuns

POLL_S = 1.0
SERVICE_VARIABLE = "RAYSCRIBE_SERVICE"

ServiceOption = Annotated[
    str | None,
    typer.Option(
        "--service",
        envvar=SERVICE_VARIABLE,
        metavar="URL",
        help="URL of a running `rayscribe serve`. Default: a local ledger, whose runs advance while commands run.",
    ),
]
RunName = Annotated[str, run_argument("Name of the run, or its folder or URL.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON; docs/jobs.md describes it.")]


@dataclass(frozen=True)
class CommandSession:
    """The operations, and how a command refreshes runs and waits for them.

    Attributes:
        operations: Operations on the runs of queues.
        packages: Folder in which packages are built before they are uploaded.
        refresh: Updates the runs once; does nothing with a service, which updates them itself.
        observe: Updates the runs once, but submits no job; does nothing with a service.
        wait_until: Waits until a condition is true; without a service, runs the controller meanwhile.
        standalone: True if there is no service.
    """

    operations: Operations
    packages: Path
    refresh: Callable[[], None]
    observe: Callable[[], None]
    wait_until: Callable[[Callable[[], bool]], None]
    standalone: bool

    @cached_property
    def runs(self) -> "AllRuns":
        """All runs, with and without a queue."""
        from jobs.service.direct.all_runs import AllRuns  # noqa: PLC0415

        return AllRuns(self.operations)


@contextmanager
def open_session(service: str | None) -> Iterator[CommandSession]:
    """Opens a session during the block."""
    if service:
        from jobs.api.client import Client  # noqa: PLC0415

        def sleep(seconds: float) -> None:
            # Delays double, so this range has one delay per outage, after 1.5 s.
            if 1.0 < seconds <= 2.0:
                typer.echo(f"the service {service} does not respond; retrying", err=True)
            time.sleep(seconds)

        with Client(service, sleep=sleep) as client:
            yield CommandSession(client, home() / "outbox", lambda: None, lambda: None, _poll_service, standalone=False)
        return
    # Imported here, since Ray takes a second to import, and a service's client does not need it.
    os.environ.setdefault("RAY_TRAIN_ENABLE_STATE_TRACKING", "1")
    from jobs.service.standalone import open_local  # noqa: PLC0415

    with open_local() as local:

        def refresh(*, submit: bool = True) -> None:
            if not local.refresh(submit=submit):
                typer.echo("a cluster or a storage does not respond; showing the last known state", err=True)

        observe = partial(refresh, submit=False)
        yield CommandSession(local.service, local.packages.folder, refresh, observe, local.run_until, standalone=True)


def _poll_service(until: Callable[[], bool]) -> None:
    """Polls a service until a condition is true, even while the service restarts, however long that takes."""
    unavailable = False
    while True:
        try:
            if until():
                return
            unavailable = False
        except ServiceError as error:
            if not unavailable:
                typer.echo(f"{error}; waiting for the service", err=True)
            unavailable = True
        time.sleep(POLL_S)
