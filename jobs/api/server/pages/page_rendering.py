"""Pages from templates. Texts of others are escaped; a browser runs no script and applies no style within a page."""

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fastapi import Request
from jinja2 import Environment
from starlette.responses import HTMLResponse

from jobs.api.server.pages.static_files import HTMX, static_files
from jobs.errors import LedgerError
from jobs.lifecycle import RunState
from jobs.printable import printable
from trainers.config.wording import counted, format_duration
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


def page(
    request: Request, template: str, *, status: int = 200, headers: Mapping[str, str] | None = None, **values: Any
) -> HTMLResponse:
    """A page; all need a `title`."""
    pages = request.app.state.pages
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
