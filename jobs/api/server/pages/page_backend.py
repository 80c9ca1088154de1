"""What the pages show, and how endpoints get it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, cast

from anyio import CapacityLimiter
from fastapi import Depends, Request

from jobs.api.server.dependencies import RequestThreads
from jobs.api.server.pages.page_access import PageAccess
from jobs.api.server.routes.service_routes import QueuesView
from jobs.model import Run
from jobs.service.operations import RunOperations
from jobs.service.run_folders import RunFolders

# Of requests that read reports or score files, each of which may be large.
FOLDER_THREADS = 2


@dataclass(frozen=True)
class PageBackend:
    """What the pages use.

    Attributes:
        runs_of: The operations on runs, for the requests of a user.
        queues: The queues with their numbers of runs.
        access: How a browser signs in. None: all requests that come here have a user.
        key_of: By which name `runs_of` finds a run.
        threads: Of requests for lists and logs; the API's, where it is served next to the pages.
        poll_s: How often an open page is read again. Seconds.
    """

    runs_of: Callable[[str], RunOperations]
    queues: Callable[[], QueuesView]
    access: PageAccess | None
    key_of: Callable[[Run], str]
    threads: RequestThreads = field(default_factory=RequestThreads)
    poll_s: int = 3
    folders: RunFolders = field(default_factory=RunFolders)
    folder_threads: CapacityLimiter = field(default_factory=partial(CapacityLimiter, FOLDER_THREADS))


async def pages_of(request: Request) -> PageBackend:
    """The app's backend of pages."""
    return cast(PageBackend, request.app.state.pages)


async def runs_of(request: Request, pages: Annotated[PageBackend, Depends(pages_of)]) -> RunOperations:
    """The operations on runs, as the user of the request."""
    return pages.runs_of(request.state.user)


PagesDep = Annotated[PageBackend, Depends(pages_of)]
RunsDep = Annotated[RunOperations, Depends(runs_of)]
