"""Where a command finds its runs: a service over HTTP, or the ledger of this user on this machine."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from jobs.errors import ServiceError
from jobs.front import Front
from jobs.home import home

POLL_S = 1.0
SERVICE_VARIABLE = "RAYSCRIBE_SERVICE"

ServiceOption = Annotated[
    str | None,
    typer.Option(
        "--service",
        envvar=SERVICE_VARIABLE,
        metavar="URL",
        help="A running `rayscribe serve`. Default: none; the ledger is a file of yours, and commands drive the runs.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, as the README describes it.")]


@dataclass(frozen=True)
class Session:
    """The front door, and how runs get on while a command waits.

    Attributes:
        front: Takes what is asked.
        packages: Where packages are made before they are handed over.
        look: Brings things up to date where no service does.
        drive: Waits until a condition holds, driving the runs meanwhile where no service does.
        alone: Whether nobody drives the runs once this command has ended.
    """

    front: Front
    packages: Path
    look: Callable[[], None]
    drive: Callable[[Callable[[], bool]], None]
    alone: bool


@contextmanager
def opened(service: str | None) -> Iterator[Session]:
    """Opens the front door for the length of the block.

    Raises:
        ServiceError: it does not answer.
    """
    if service:
        from jobs.client import Client  # noqa: PLC0415

        with Client(service) as client:
            yield Session(client, home() / "outbox", lambda: None, _wait, alone=False)
        return
    # Only now: Ray takes a second to load, and a service's client needs none of it.
    os.environ.setdefault("RAY_TRAIN_ENABLE_STATE_TRACKING", "1")
    from jobs.local import open_local  # noqa: PLC0415

    with open_local() as local:

        def look() -> None:
            if not local.look():
                typer.echo("a cluster or a storage does not answer; this is what was known before", err=True)

        yield Session(local.service, local.packages.folder, look, local.drive, alone=True)


def _wait(until: Callable[[], bool]) -> None:
    """Waits for a service, over its restarts however long they take: it has answered before."""
    lost = False
    while True:
        try:
            if until():
                return
            lost = False
        except ServiceError as error:
            if not lost:
                typer.echo(f"{error}; waiting for it", err=True)
            lost = True
        time.sleep(POLL_S)
