"""Converts every error to one format of response, which does not quote the request, since it may contain a secret."""

import logging
import traceback
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.routing import compile_path

from jobs.api.protocol import ErrorBody, FullDiskError, status_of
from jobs.errors import LedgerError, NotFoundError, ServiceError
from trainers.errors import ConfigError, RayscribeError
from trainers.storage.full_disk import NUMBERS as FULL_DISK_NUMBERS
from trainers.storage.full_disk import is_full_disk

log = logging.getLogger(__name__)

# The connection is still waiting for the rest of a body that did not arrive.
HEADERS: dict[int, dict[str, str]] = {401: {"WWW-Authenticate": "Bearer"}, 408: {"Connection": "close"}}
# Message of SQLite.
SQLITE_FULL = "database or disk is full"
# Pydantic's type of the error for an unknown key; its message is not sent, since it quotes the key.
_UNKNOWN_KEY = "extra_forbidden"


def error_response(
    error: RayscribeError, status: int | None = None, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    """Builds the response to an error, with the given status or its `status_of`, and additional headers."""
    if isinstance(error, LedgerError):
        full = is_full_disk(error, None) or SQLITE_FULL in str(error)
        error = FullDiskError(FullDiskError.for_clients) if full else ServiceError(LedgerError.for_clients)
    status = status if status is not None else status_of(error)
    defaults = HEADERS.get(status, {})
    return JSONResponse(ErrorBody.from_error(error).model_dump(mode="json"), status, {**defaults, **(headers or {})})


def internal_error_response(error: BaseException, request_id: str) -> JSONResponse:
    """Builds the response to an unexpected exception; logs its traceback without its text, which may quote input.

    A full disk is reported as such: any request that writes a file or a package may run into it.
    """
    chain: list[str] = []
    cause: BaseException | None = error
    while cause is not None and len(chain) < 10:
        frames = "".join(traceback.format_tb(cause.__traceback__))
        chain.append(f"{type(cause).__module__}.{type(cause).__qualname__}\n{frames}")
        cause = cause.__cause__ or cause.__context__
    log.error("request %s failed: %s", request_id, "raised from ".join(chain))
    if isinstance(error, OSError) and error.errno in FULL_DISK_NUMBERS:
        return error_response(FullDiskError(FullDiskError.for_clients))
    return error_response(ServiceError(f"internal error; the service's log has the traceback under {request_id}"), 500)


def add_error_handlers(app: FastAPI) -> None:
    """Adds the app's error handler."""
    for kind in (RayscribeError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, _handle)


def _describe_error(error: Mapping[str, Any]) -> str:
    """Describes an error of a request, using only field names of this API."""
    location, *path = [str(step) for step in error["loc"]] or ["body"]
    if error["type"] == _UNKNOWN_KEY:
        # The client's key may be a secret; only its location is named.
        parent = ".".join([location, *path[:-1]])
        return f"{parent}: unknown field; /openapi.json lists the known ones"
    name = ".".join([location, *path[:1]])
    return f"{name}: {str(error['msg']).removeprefix('Value error, ')}"


async def _handle(request: Request, error: Exception) -> Response:
    if isinstance(error, RayscribeError):
        if status_of(error) >= 500:
            log.warning("%s: %s", type(error).__name__, error)
        return error_response(error)
    if isinstance(error, RequestValidationError):
        described = "; ".join(sorted({_describe_error(item) for item in error.errors()}))
        return error_response(ConfigError(f"the request is not valid: {described}"))
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        converted: RayscribeError = NotFoundError("unknown path; /openapi.json lists the known ones")
    elif error.status_code == 405:
        converted = ConfigError("this path does not support this method; /openapi.json lists those that it does")
        # The framework's Allow header has the methods of one function only.
        paths: Mapping[str, Mapping[str, Any]] = request.app.openapi()["paths"]
        matching = [methods for path, methods in paths.items() if compile_path(path)[0].match(request.url.path)]
        methods = sorted({method.upper() for methods in matching for method in methods})
        return error_response(converted, 405, {"Allow": ", ".join(methods)})
    elif error.status_code < 500:
        converted = ConfigError(str(error.detail))
    else:
        converted = ServiceError(str(error.detail))
    return error_response(converted, error.status_code, error.headers)
