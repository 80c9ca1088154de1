"""Where a command finds its runs: a service over HTTP, or the ledger of this user on this machine."""

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from jobs.errors import ServiceError
from jobs.paths import home
from jobs.service.interface import Operations

POLL_S = 1.0
# Tries that are further apart than this belong to two silences.
SILENCE_S = 30.0
# One that never answered is given up before that.
SAID_AFTER_S = 2.5
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
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, as docs/jobs.md describes it.")]


@dataclass(frozen=True)
class Session:
    """The operations, and how runs get on while a command waits.

    Attributes:
        operations: Takes what is asked.
        packages: Where packages are made before they are handed over.
        look: Brings things up to date where no service does.
        drive: Waits until a condition holds, driving the runs meanwhile where no service does.
        alone: Whether nobody drives the runs once this command has ended.
    """

    operations: Operations
    packages: Path
    look: Callable[[], None]
    drive: Callable[[Callable[[], bool]], None]
    alone: bool


@contextmanager
def opened(service: str | None) -> Iterator[Session]:
    """Opens the operations for the length of the block.

    Raises:
        ServiceError: it does not answer.
    """
    if service:
        from jobs.api.client import Client  # noqa: PLC0415

        with Client(service, sleep=_Patience(service).sleep) as client:
            yield Session(client, home() / "outbox", lambda: None, _wait, alone=False)
        return
    # Only now: Ray takes a second to load, and a service's client needs none of it.
    os.environ.setdefault("RAY_TRAIN_ENABLE_STATE_TRACKING", "1")
    from jobs.service.standalone import open_local  # noqa: PLC0415

    with open_local() as local:

        def look() -> None:
            if not local.look():
                typer.echo("a cluster or a storage does not answer; this is what was known before", err=True)

        yield Session(local.service, local.packages.folder, look, local.drive, alone=True)


class _Patience:
    """Waits between two tries of a service that is silent, and says so once for each silence that lasts."""

    def __init__(self, service: str):
        self._service, self._tried_s, self._waited_s, self._said = service, -math.inf, 0.0, False

    def sleep(self, seconds: float) -> None:
        """Waits."""
        if time.monotonic() - self._tried_s > SILENCE_S:
            self._waited_s, self._said = 0.0, False
        if self._waited_s > SAID_AFTER_S and not self._said:
            typer.echo(f"the service {self._service} does not answer just now; trying again", err=True)
            self._said = True
        time.sleep(seconds)
        self._waited_s += seconds
        self._tried_s = time.monotonic()


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
