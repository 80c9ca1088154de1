"""What the pages show, and how: from templates.

Texts of others are escaped; a browser runs no script and applies no style within a page.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, cast
from urllib.parse import quote

from fastapi import Depends, Request
from jinja2 import Environment
from starlette.responses import HTMLResponse

from jobs.api.server.dependencies import RequestThreads
from jobs.api.server.pages.static_files import HTMX, static_files
from jobs.api.server.routes.service_routes import QueuesView
from jobs.errors import LedgerError
from jobs.lifecycle import RunState
from jobs.model import Run
from jobs.service.operations import RunOperations
from jobs.service.run_folders import RunFolders
from trainers.config.wording import counted, format_duration, printable
from trainers.errors import RayscribeError
from trainers.scoring.report.rendering import CSS, environment_of

TEMPLATES = Path(__file__).parent / "templates"
# What a page may load, and where its forms lead.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {"Content-Security-Policy": POLICY, "Referrer-Policy": "same-origin"}
ERRORS = {403: "Refused", 404: "Not found", 405: "Not found", 409: "Not possible now", 422: "Not valid"}
# As classes of the style sheet: how a state is shown, next to its name.
TONES: Mapping[RunState, str] = {
    **dict.fromkeys(RunState, "plain"),
    RunState.SUCCEEDED: "good",
    RunState.FAILED: "bad",
    **dict.fromkeys((RunState.PREPARING_DATA, RunState.TRAINING, RunState.EVALUATING), "live"),
}


@dataclass(frozen=True)
class PageAccess:
    """How a browser signs in.

    Attributes:
        cookie_of: What the cookie holds for a token; None: the token is not known.
        user_of: The user of a cookie; None: it is not known.
        by_link: The token is in the address that `rayscribe ui` prints, and is not asked for.
    """

    cookie_of: Callable[[str], str | None]
    user_of: Callable[[str], str | None]
    by_link: bool = False


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


def page(
    request: Request, template: str, *, status: int = 200, headers: Mapping[str, str] | None = None, **values: Any
) -> HTMLResponse:
    """A page; all need a `title`."""
    pages: PageBackend = request.app.state.pages
    general = {
        "user": request.scope["state"].get("user"),
        "signs_out": pages.access is not None,
        "poll_s": pages.poll_s,
        "here": here(request),
        "sections": [],
    }
    html = _environment().get_template(template).render(**{**general, **values})
    return HTMLResponse(html, status, {**HEADERS, **(headers or {})})


def error_page(request: Request, status: int, error: str | RayscribeError) -> HTMLResponse:
    """The page of an error, which names no file of the service's host."""
    reason = LedgerError.for_clients if isinstance(error, LedgerError) else str(error)
    title = ERRORS.get(status, "Not available now")
    return page(request, "error.html.j2", status=status, title=title, reason=reason)


def here(request: Request) -> str:
    """Path and query of the request, as the browser has sent them."""
    path: bytes = request.scope["raw_path"]
    query: bytes = request.scope["query_string"]
    return (path + b"?" + query if query else path).decode("ascii", "replace")


@cache
def _environment() -> Environment:
    environment = environment_of(TEMPLATES)
    environment.filters |= {
        "printable": printable,
        "duration": format_duration,
        "counted": counted,
        "when": _when,
        "iso": _iso,
        "key": lambda text: quote(text, safe=""),
    }
    files = static_files()
    environment.globals |= {
        "version": version("rayscribe"),
        "styles": [files[CSS], files["pages.css"]],
        "icon": files["icon.svg"],
        "htmx": files[HTMX],
        "tones": TONES,
    }
    return environment


def _when(at_s: float) -> str:
    return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%d %H:%M} UTC"


def _iso(at_s: float) -> str:
    return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%dT%H:%M:%SZ}"


async def pages_of(request: Request) -> PageBackend:
    """The app's backend of pages."""
    return cast(PageBackend, request.app.state.pages)


async def runs_of(request: Request, pages: Annotated[PageBackend, Depends(pages_of)]) -> RunOperations:
    """The operations on runs, as the user of the request."""
    return pages.runs_of(request.state.user)


PagesDep = Annotated[PageBackend, Depends(pages_of)]
RunsDep = Annotated[RunOperations, Depends(runs_of)]
