"""The FastAPI apps of the service and of `rayscribe ui`: middleware, routes, general part of the OpenAPI text."""

import time
from collections.abc import Callable
from importlib.metadata import version

from fastapi import APIRouter, FastAPI, Security
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException

from jobs.api.protocol import OPENAPI
from jobs.api.server.dependencies import Backend
from jobs.api.server.error_responses import add_error_handlers
from jobs.api.server.middleware import (
    AccessLogMiddleware,
    BodyLimitMiddleware,
    LoopbackMiddleware,
    TokenMiddleware,
    bare_app,
)
from jobs.api.server.pages.page_access import access_by_token
from jobs.api.server.pages.page_app import add_pages, show_http_exception
from jobs.api.server.pages.page_rendering import PageAccess, PageBackend
from jobs.api.server.prometheus import Figures, LedgerCollector, registry_of
from jobs.api.server.routes import package_routes, run_routes, service_routes
from jobs.service.direct.all_runs import AllRuns
from jobs.service.standalone import StandaloneService

ABOUT = """
The Rayscribe service queues runs and executes them on Ray clusters.

Times are seconds since 1970, UTC. All error responses have the format `ErrorBody`. Any token may read, stop and resume
any run; each change is recorded as an event with the user who made it.
"""
TOKEN = HTTPBearer(
    auto_error=False,
    scheme_name="token",
    description="`Authorization: Bearer rsk_…`; not needed where the service runs with --no-auth.",
)


def make_app(backend: Backend, *, anonymous_user: str | None = None, clock: Callable[[], float] = time.time) -> FastAPI:
    """Creates the app.

    With an `anonymous_user`, requests need no token and are made as this user; only for a service on loopback.
    """
    app = bare_app(
        title="Rayscribe",
        version=version("rayscribe"),
        description=ABOUT,
        openapi_url=OPENAPI,
        # The function's name: stable, and readable in generated clients.
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
        # A function: the OpenAPI description is generated without a service.
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
    app.add_exception_handler(HTTPException, show_http_exception)
    # The link identifies the user.
    return AccessLogMiddleware(LoopbackMiddleware(BodyLimitMiddleware(app), user=None))
