"""The FastAPI app: layers, routes, and what the OpenAPI description says of the whole."""

import time
from collections.abc import Callable
from importlib.metadata import version

from fastapi import APIRouter, FastAPI, Security
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from fastapi.telemetry import TelemetryConfig

from jobs.api.protocol import OPENAPI
from jobs.api.server.access_log import Guard
from jobs.api.server.auth import LoopbackGate, TokenGate
from jobs.api.server.body_limit import BodyLimit
from jobs.api.server.dependencies import Backend
from jobs.api.server.error_responses import handle_failures
from jobs.api.server.prometheus import LedgerCollector, registry_of
from jobs.api.server.routes import package_routes, run_routes, service_routes

ABOUT = """
Rayscribe fine-tunes speech recognizers on Ray clusters; this service is the queue in front of them.

Times are seconds since 1970, UTC. Every answer that is not the one asked for has one shape, `ErrorBody`. All tokens may
read, stop and resume all runs; every change is an event that says whose token made it.
"""
TOKEN = HTTPBearer(
    auto_error=False,
    scheme_name="token",
    description="`Authorization: Bearer rsk_…`; not needed where the service runs with --no-auth.",
)
# What the framework would hand to OpenTelemetry quotes requests: queries, and the texts of exceptions.
NO_TELEMETRY: TelemetryConfig = {
    "tracing": False,
    "metrics": False,
    "logs": False,
    "operation_spans": False,
    "auto_configure": False,
}


def make_app(backend: Backend, *, open_as: str | None = None, clock: Callable[[], float] = time.time) -> FastAPI:
    """Makes the app.

    Args:
        backend: What the endpoints work with.
        open_as: Asks for no tokens, and takes everybody for this user; only for a service on a loopback address. None:
            everybody needs a token of the ledger.
        clock: Seconds since 1970.
    """
    app = FastAPI(
        title="Rayscribe",
        version=version("rayscribe"),
        description=ABOUT,
        openapi_url=OPENAPI,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=_operation_id,
        telemetry=NO_TELEMETRY,
    )
    app.state.backend = backend
    app.state.registry = registry_of(
        LedgerCollector(
            lambda: (backend.ledger.usage.runs(), backend.ledger.usage.totals(now_s=clock())),
            backend.queues,
            backend.holds_lease,
        )
    )
    handle_failures(app)
    guarded = APIRouter(dependencies=[Security(TOKEN)])
    for module in (run_routes, package_routes, service_routes):
        guarded.include_router(module.router)
    app.include_router(guarded)
    app.include_router(service_routes.public_router)
    # The last one added is the outermost.
    app.add_middleware(BodyLimit)
    if open_as is None:
        app.add_middleware(TokenGate, user_of=backend.ledger.tokens.user_of)
    else:
        app.add_middleware(LoopbackGate, user=open_as)
    app.add_middleware(Guard)
    return app


def _operation_id(route: APIRoute) -> str:
    """The function's name: stable, and readable in generated clients."""
    return route.name
