"""The FastAPI apps of the service and of `rayscribe ui`: middleware, routes, general part of the OpenAPI text."""

import time
from collections.abc import Callable
from importlib.metadata import version

from fastapi import APIRouter, FastAPI, Request, Security
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response

from jobs.api.protocol import OPENAPI, ROOT, UI, ErrorBody, status_of
from jobs.api.server.dependencies import Backend
from jobs.api.server.error_responses import add_error_handlers
from jobs.api.server.middleware import (
    AccessLogMiddleware,
    BodyLimitMiddleware,
    LoopbackMiddleware,
    TokenMiddleware,
    bare_app,
)
from jobs.api.server.pages import list_page, log_page, page_access, page_rendering, run_page
from jobs.api.server.pages.page_access import HOME, CookieMiddleware, access_by_token
from jobs.api.server.pages.page_rendering import PageAccess, PageBackend, error_page
from jobs.api.server.prometheus import Figures, LedgerCollector, registry_of
from jobs.api.server.routes import package_routes, run_routes, service_routes
from jobs.service.direct.all_runs import AllRuns
from jobs.service.standalone import StandaloneService
from trainers.errors import RayscribeError

ABOUT = """
The Rayscribe service queues runs and executes them on Ray clusters.

Times are seconds since 1970, UTC. Any token may read, stop and resume any run; each change is recorded as an event with
the user who made it.

All errors have the format `ErrorBody`. 401: the token is missing or not known; 403: without tokens, the request is not
from this machine; 404: not found; 409: in conflict with the current state; 400, 413, 422: the request is not valid;
408: the body did not arrive in time; 502: a Ray cluster, or the storage of a run, does not respond; 503: the ledger's
database does not; 507: a disk of the service is full; 500: an internal error, which the service's log explains.
"""
TOKEN = HTTPBearer(
    auto_error=False,
    scheme_name="token",
    description="`Authorization: Bearer rsk_…`; not needed if the service runs with --no-auth.",
)


def make_app(backend: Backend, *, anonymous_user: str | None = None, clock: Callable[[], float] = time.time) -> FastAPI:
    """Creates the app.

    With an `anonymous_user`, requests need no token and have this user; only for a service on loopback.
    """
    app = bare_app(
        title="Rayscribe",
        version=version("rayscribe"),
        description=ABOUT,
        openapi_url=OPENAPI,
        responses={"default": {"model": ErrorBody, "description": "An error."}},
        # The function's name is stable, and readable in generated clients.
        generate_unique_id_function=lambda route: route.name,
    )
    app.state.backend, app.state.threads = backend, backend.threads
    app.state.registry = registry_of(
        LedgerCollector(
            lambda: Figures(
                backend.ledger.usage.runs(), backend.ledger.usage.totals(now_s=clock()), backend.service.waits()
            ),
            backend.queues,
            backend.holds_lease,
        )
    )
    add_error_handlers(app)
    authenticated = APIRouter(dependencies=[Security(TOKEN)])
    for module in (run_routes, package_routes, service_routes):
        authenticated.include_router(module.router)
    app.include_router(authenticated)
    app.include_router(service_routes.public_router)
    add_pages(app, _pages(backend, has_tokens=anonymous_user is None))
    # The middleware added last is the outermost.
    app.add_middleware(BodyLimitMiddleware)
    if anonymous_user is None:
        app.add_middleware(TokenMiddleware, user_of=backend.ledger.tokens.user_of)
    else:
        app.add_middleware(LoopbackMiddleware, user=anonymous_user)
    app.add_middleware(AccessLogMiddleware)
    return app


def _pages(backend: Backend, *, has_tokens: bool) -> PageBackend:
    return PageBackend(
        # A lambda, since the OpenAPI description is generated without a service.
        runs_of=lambda user: backend.service.as_user(user),  # noqa: PLW0108
        queues=lambda: service_routes.queues_view(backend.ledger, backend.queues),
        access=access_by_token(backend.ledger.tokens.user_of) if has_tokens else None,
        key_of=lambda run: run.id,
        threads=backend.threads,
    )


def ui_app(local: StandaloneService, access: PageAccess) -> AccessLogMiddleware:
    """Creates the app of `rayscribe ui`: only pages, only for browsers on this machine that have the link."""
    runs = AllRuns(local.service)
    app = bare_app(openapi_url=None)
    add_pages(
        app,
        PageBackend(
            runs_of=lambda _: runs,
            queues=lambda: service_routes.queues_view(local.ledger, local.queues),
            access=access,
            # Several runs without a queue may have the same name.
            key_of=lambda run: run.run_folder,
            # Each poll reads the folders of runs without a queue, which may be in a bucket.
            poll_s=10,
        ),
    )
    app.add_exception_handler(HTTPException, _show_error)
    # The link identifies the user.
    return AccessLogMiddleware(LoopbackMiddleware(BodyLimitMiddleware(app), user=None))


def add_pages(app: FastAPI, pages: PageBackend) -> None:
    """Mounts the pages below /ui of an app, which redirects `/` and /ui to them; their errors are shown as pages."""
    app.state.pages = pages

    @app.get(ROOT, include_in_schema=False)
    @app.get(UI, include_in_schema=False)
    @app.get(f"{UI}/", include_in_schema=False)
    async def first_page() -> Response:
        return RedirectResponse(HOME, 303)

    below = bare_app(openapi_url=None)
    below.state.pages, below.state.threads = pages, pages.threads
    for module in (list_page, run_page, log_page, page_rendering, page_access):
        below.include_router(module.router)
    for kind in (RayscribeError, RequestValidationError, HTTPException, Exception):
        below.add_exception_handler(kind, _show_error)
    below.add_middleware(CookieMiddleware, access=pages.access)
    app.mount(UI, below)


async def _show_error(request: Request, error: Exception) -> Response:
    match error:
        case RayscribeError():
            return error_page(request, status_of(error), error)
        case RequestValidationError():
            return error_page(request, 422, "The address is not valid.")
        case HTTPException():
            return error_page(request, error.status_code, "There is no such page.")
    return error_page(request, 500, "An internal error; see the service's log.")
