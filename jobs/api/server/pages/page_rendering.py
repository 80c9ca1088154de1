"""Rendering of the pages from templates, and the static files of every page: style sheet, icon, and htmx.

Texts of other users are escaped; browsers run no inline script and apply no inline style.

htmx, which keeps pages up to date, is dist/htmx.min.js of its npm package htmx.org, version 4.0.1 (0BSD,
htmx-4.0.1.LICENSE), byte for byte. The wheel includes it, so that an installation needs no npm and no build step, and
pages load nothing from elsewhere. Its hash is a constant here. To update: run `npm pack htmx.org`, which checks the
registry's hash of the package; then replace the file, its license and the two constants.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, cast
from urllib.parse import quote

from fastapi import APIRouter, Depends, Request, Response
from jinja2 import Environment
from starlette.responses import FileResponse, HTMLResponse

from jobs.api.protocol import UI
from jobs.api.server.dependencies import RequestThreads, request_threads
from jobs.api.server.routes.service_routes import QueuesView
from jobs.errors import LedgerError, NotFoundError
from jobs.model import Run, RunState
from jobs.service.operations import RunOperations
from jobs.service.run_folders import RunFolders
from trainers.config.wording import counted, format_duration, printable
from trainers.errors import RayscribeError
from trainers.scoring.report.rendering import CSS, environment_of
from trainers.scoring.report.rendering import TEMPLATES as REPORT_TEMPLATES

TEMPLATES = Path(__file__).parent / "templates"
STATIC = f"{UI}/static"
HTMX = "htmx-4.0.1.min.js"
HTMX_SHA256 = "a0abb04f2f45a1f89d1d4844023245537e5e6014c87b144553e0607b4cc32130"
FOLDER = Path(__file__).parent / "static"
# File names with their folders; the pages share the style sheet of reports.
FILES = {CSS: REPORT_TEMPLATES, "pages.css": FOLDER, "icon.svg": FOLDER, HTMX: FOLDER}
# Unlimited, since each URL has the hash of its content.
CACHE_CONTROL = "public, max-age=31536000, immutable"
# Content-Security-Policy: what a page may load, and where its forms are sent.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {"Content-Security-Policy": POLICY, "Referrer-Policy": "same-origin"}
ERRORS = {403: "Refused", 404: "Not found", 405: "Not found", 409: "Not possible now", 422: "Not valid"}
# CSS classes that show a state, next to its name.
TONES: Mapping[RunState, str] = {
    **dict.fromkeys(RunState, "plain"),
    RunState.SUCCEEDED: "good",
    RunState.FAILED: "bad",
    **dict.fromkeys((RunState.PREPARING_DATA, RunState.TRAINING, RunState.EVALUATING), "live"),
}

router = APIRouter()


@dataclass(frozen=True)
class PageAccess:
    """Access of browsers to the pages.

    Attributes:
        cookie_of: Returns the content of the cookie for a token; None if the token is not known.
        user_of: Returns the user of a cookie; None if the cookie is not known.
        by_link: True if the token is in the URL that `rayscribe ui` prints, so that no page asks for it.
    """

    cookie_of: Callable[[str], str | None]
    user_of: Callable[[str], str | None]
    by_link: bool = False


@dataclass(frozen=True)
class PageBackend:
    """Dependencies of the pages.

    Attributes:
        runs_of: Returns the operations on runs for a user.
        queues: Returns the queues with their numbers of runs.
        access: How a browser signs in. None if outer middleware sets the user of every request.
        key_of: Returns the name by which `runs_of` finds a run.
        threads: Threads for lists and logs; those of the API if one app serves both.
        poll_s: Seconds between two polls of an open page.
    """

    runs_of: Callable[[str], RunOperations]
    queues: Callable[[], QueuesView]
    access: PageAccess | None
    key_of: Callable[[Run], str]
    threads: RequestThreads = field(default_factory=request_threads)
    poll_s: int = 3
    folders: RunFolders = field(default_factory=RunFolders)


def page(
    request: Request, template: str, *, status: int = 200, headers: Mapping[str, str] | None = None, **values: Any
) -> HTMLResponse:
    """Renders a page; all templates need a `title`."""
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
    """Renders the page of an error, without file names of the service's host."""
    reason = LedgerError.for_clients if isinstance(error, LedgerError) else str(error)
    title = ERRORS.get(status, "Not available now")
    return page(request, "error.html.j2", status=status, title=title, reason=reason)


def here(request: Request) -> str:
    """Returns path and query of the request, as the browser sent them."""
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
    hashes = {name: sha256((folder / name).read_bytes()).hexdigest() for name, folder in FILES.items()}
    urls = {name: f"{STATIC}/{name}?v={of[:12]}" for name, of in hashes.items()}
    environment.globals |= {
        "version": version("rayscribe"),
        "styles": [urls[CSS], urls["pages.css"]],
        "icon": urls["icon.svg"],
        "htmx": urls[HTMX],
        "tones": TONES,
    }
    return environment


def _when(at_s: float) -> str:
    return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%d %H:%M} UTC"


def _iso(at_s: float) -> str:
    return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%dT%H:%M:%SZ}"


async def pages_of(request: Request) -> PageBackend:
    """Returns the app's backend of pages."""
    return cast(PageBackend, request.app.state.pages)


async def runs_of(request: Request, pages: Annotated[PageBackend, Depends(pages_of)]) -> RunOperations:
    """Returns the operations on runs, acting as the user of the request."""
    return pages.runs_of(request.state.user)


PagesDep = Annotated[PageBackend, Depends(pages_of)]
RunsDep = Annotated[RunOperations, Depends(runs_of)]


@router.get("/static/{name}")
def static_file(name: str) -> Response:
    """Returns a file. Needs no token: the files are the same for every installation of a version."""
    if name not in FILES:
        raise NotFoundError("there is no such file")
    return FileResponse(FILES[name] / name, headers={"Cache-Control": CACHE_CONTROL})
