"""A FastAPI app without what FastAPI adds: pages that load third-party scripts, redirects, telemetry."""

from typing import Any

from fastapi import FastAPI
from fastapi.telemetry import TelemetryConfig

# Telemetry would include parts of requests: query strings and the texts of exceptions.
NO_TELEMETRY: TelemetryConfig = {
    "tracing": False,
    "metrics": False,
    "logs": False,
    "operation_spans": False,
    "auto_configure": False,
}


def bare_app(*, openapi_url: str | None, **options: Any) -> FastAPI:
    """The app; the options are FastAPI's."""
    return FastAPI(
        openapi_url=openapi_url,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        telemetry=NO_TELEMETRY,
        **options,
    )
