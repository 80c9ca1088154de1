"""Whatever goes wrong becomes one shape of answer, which repeats nothing of the request: it may hold a secret."""

import logging
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.routing import compile_path

from jobs.api.protocol import ErrorBody, status_of
from jobs.errors import LedgerError, NotFoundError, ServiceError
from trainers.errors import ConfigError, RayscribeError

log = logging.getLogger(__name__)

# A body that does not come keeps its connection busy for ever.
HEADERS: dict[int, dict[str, str]] = {401: {"WWW-Authenticate": "Bearer"}, 408: {"Connection": "close"}}
# What the framework says in words that we do not send on, since some of them quote the value.
_UNKNOWN_KEY = "extra_forbidden"


def answer(error: RayscribeError, status: int | None = None, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """The answer for an error.

    Args:
        error: What went wrong.
        status: HTTP status. None: the usual one of this error.
        headers: Added to the answer.
    """
    if isinstance(error, LedgerError):
        error = ServiceError(LedgerError.for_clients)
    status = status if status is not None else status_of(error)
    usual = HEADERS.get(status, {})
    return JSONResponse(ErrorBody.of(error).model_dump(mode="json"), status, {**usual, **(headers or {})})


def answer_unknown(error: BaseException, request_id: str) -> JSONResponse:
    """The answer for a fault of ours; logs where it happened, without its text, which may quote the request."""
    chain: list[str] = []
    cause: BaseException | None = error
    while cause is not None and len(chain) < 10:
        frames = "".join(traceback.format_tb(cause.__traceback__))
        chain.append(f"{type(cause).__module__}.{type(cause).__qualname__}\n{frames}")
        cause = cause.__cause__ or cause.__context__
    log.error("request %s failed: %s", request_id, "raised from ".join(chain))
    return answer(ServiceError(f"the service failed; its log has the place under {request_id}"), 500)


def handle_failures(app: FastAPI) -> None:
    """Gives the app its handlers."""
    app.add_exception_handler(RayscribeError, _on_ours)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_framework)


def in_words(faults: Sequence[Mapping[str, Any]]) -> str:
    """What is wrong with a request, by the names of the API's own fields alone."""
    return "; ".join(sorted({_fault(fault) for fault in faults}))


def _methods_of(request: Request) -> list[str]:
    """The methods that the API describes for the path of a request."""
    paths: Mapping[str, Mapping[str, Any]] = request.app.openapi()["paths"]
    fitting = [methods for path, methods in paths.items() if compile_path(path)[0].match(request.url.path)]
    return sorted({method.upper() for methods in fitting for method in methods})


def _fault(fault: Mapping[str, Any]) -> str:
    where, *path = [str(step) for step in fault["loc"]] or ["body"]
    if fault["type"] == _UNKNOWN_KEY:
        # The key came from outside; only where it was found is ours.
        inside = ".".join([where, *path[:-1]])
        return f"{inside}: an unknown name; /openapi.json lists those that are"
    name = ".".join([where, *path[:1]])
    return f"{name}: {str(fault['msg']).removeprefix('Value error, ')}"


async def _on_ours(request: Request, error: Exception) -> Response:
    assert isinstance(error, RayscribeError)
    if status_of(error) >= 500:
        log.warning("%s: %s", type(error).__name__, error)
    return answer(error)


async def _on_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return answer(ConfigError(f"the request is not one of this API: {in_words(error.errors())}"), 422)


async def _on_framework(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        ours: RayscribeError = NotFoundError("no such path in this API: /openapi.json lists those that are")
    elif error.status_code == 405:
        ours = ConfigError("this path does not take this method: /openapi.json lists those that it takes")
        # The framework names the methods of one function alone.
        return answer(ours, 405, {"Allow": ", ".join(_methods_of(request))})
    elif error.status_code < 500:
        ours = ConfigError(str(error.detail))
    else:
        ours = ServiceError(str(error.detail))
    return answer(ours, error.status_code, error.headers)
