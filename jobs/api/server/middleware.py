"""Middleware around the endpoints: access log, security headers, authentication, limits of bodies.

The log has method, path, status, time and user of each request, but no query string, header or body, since they may
contain secrets.

Authentication is by bearer tokens. With --no-auth, on loopback only, every program on this machine has access. Three
endpoints are public. `/` redirects to the pages below /ui, which take a token in a cookie, see `pages.page_access`; the
API takes no cookie. `/healthz` is for load balancers. `/openapi.json` is the same for every installation of a version,
and generators of clients read it without a token. There is no /docs, because that page would load third-party scripts
where users enter their tokens.

Without tokens, access is limited to programs on this machine. A browser on this machine sends requests for any page
that it shows, so requests of web pages are rejected: by the Origin and Sec-Fetch-Site headers that browsers send, and
by the Host header, which is another name if a page had its own name resolved to 127.0.0.1 (DNS rebinding).
"""

import asyncio
import logging
import time
import uuid
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI
from fastapi.concurrency import run_in_threadpool
from fastapi.telemetry import TelemetryConfig
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jobs.addresses import is_loopback, is_loopback_url
from jobs.api.protocol import (
    HEALTH,
    MAX_JSON_BYTES,
    METRICS,
    OPENAPI,
    PACKAGES,
    REQUEST_ID,
    ROOT,
    UI,
    TooLargeError,
    TooSlowError,
)
from jobs.api.server.error_responses import error_response, internal_error_response
from jobs.errors import AuthError
from trainers.errors import ConfigError, RayscribeError

PUBLIC = (HEALTH, OPENAPI, ROOT, UI)
SCHEME = "Bearer"
MAX_TOKEN_LENGTH = 200
READ_METHODS = ("GET", "HEAD")

NO_TOKEN = (
    "no token: send `Authorization: Bearer rsk_…`; `rayscribe` reads it from RAYSCRIBE_TOKEN, from the file that "
    "RAYSCRIBE_TOKEN_FILE names, or from ~/.rayscribe/token. The service's administrator can create one"
)
UNKNOWN_TOKEN = (
    "unknown token: it was revoked, or belongs to another service; check RAYSCRIBE_TOKEN, RAYSCRIBE_TOKEN_FILE and "
    "~/.rayscribe/token, or ask the service's administrator for a new one"
)
log = logging.getLogger(__name__)

# Requested every few seconds; they would hide everything else.
DEBUG_PATHS = (HEALTH, METRICS)
MAX_PATH_LENGTH = 200
# A browser must not cache, sniff or embed responses of the API.
HEADERS = (
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
)
# Enough for a megabyte over a slow connection; a client that sends a byte per minute would occupy memory.
BODY_TIMEOUT_S = 30.0
WITHOUT_BODY = ("GET", "HEAD", "OPTIONS")
# Telemetry would include parts of requests: query strings and the texts of exceptions.
NO_TELEMETRY: TelemetryConfig = {
    "tracing": False,
    "metrics": False,
    "logs": False,
    "operation_spans": False,
    "auto_configure": False,
}


class TokenMiddleware:
    """Accepts requests with a known token, and sets its user (`state.user`)."""

    def __init__(self, app: ASGIApp, user_of: Callable[[str], str | None]):
        self._app, self._user_of = app, user_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not (scope["path"] in PUBLIC or scope["path"].startswith(f"{UI}/")):
            scheme, _, token = Headers(scope=scope).get("authorization", "").partition(" ")
            token = token.strip()
            if scheme.lower() != SCHEME.lower() or not token:
                await _unauthorized(NO_TOKEN, SCHEME)(scope, receive, send)
                return
            user = await run_in_threadpool(self._user_of, token) if len(token) <= MAX_TOKEN_LENGTH else None
            if user is None:
                await _unauthorized(UNKNOWN_TOKEN, f'{SCHEME} error="invalid_token"')(scope, receive, send)
                return
            scope["state"]["user"] = user
        await self._app(scope, receive, send)


class LoopbackMiddleware:
    """Accepts requests of programs on this machine, but not of web pages; sets one user, if any, for all of them."""

    def __init__(self, app: ASGIApp, user: str | None):
        self._app, self._user = app, user

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            rejection = rejection_reason(scope["method"], Headers(scope=scope))
            if rejection is not None:
                await error_response(AuthError(rejection), 403)(scope, receive, send)
                return
            scope["state"]["user"] = self._user
        await self._app(scope, receive, send)


def rejection_reason(method: str, headers: Headers) -> str | None:
    """Returns the reason to reject a request that may come from a web page; None if it is accepted."""
    host = headers.get("host", "")
    if not is_loopback_url(f"//{host}"):
        return (
            "the request's Host is not this machine's loopback: use http://127.0.0.1 or http://localhost, or "
            "run the service without --no-auth"
        )
    origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
    of_other_site = origin is not None and origin.lower() != f"http://{host.lower()}"
    if of_other_site or (method not in READ_METHODS and site not in ("none", "same-origin")):
        return "the request comes from a page of another site, which is not allowed without tokens (--no-auth)"
    return None


def check_loopback(host: str) -> None:
    """Raises ConfigError if other machines could connect to a service without tokens on this host."""
    if not is_loopback(host):
        raise ConfigError(
            f"--no-auth with --host {host}: anybody who can connect to it could run code on the cluster; "
            "bind to 127.0.0.1, or leave --no-auth out and give out tokens"
        )


def _unauthorized(message: str, challenge: str) -> ASGIApp:
    return error_response(AuthError(message), 401, {"WWW-Authenticate": challenge})


class AccessLogMiddleware:
    """Outermost middleware: logs requests, adds security headers, and answers unexpected exceptions."""

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start_s, request_id, status = time.monotonic(), uuid.uuid4().hex[:16], 0
        scope.setdefault("state", {})

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                # Headers that the app has set take precedence.
                present = {name for name, _ in message["headers"]}
                added = [item for item in HEADERS if item[0] not in present]
                message["headers"] = [*message["headers"], *added, (REQUEST_ID.lower().encode(), request_id.encode())]
            await send(message)

        try:
            await self._app(scope, receive, send_with_headers)
        except ClientDisconnect:
            status = status or 499
        except RayscribeError as error:  # raised in a middleware, outside the app's own handlers
            await error_response(error)(scope, receive, send_with_headers)
        except Exception as error:
            failure = internal_error_response(error, request_id)
            if status == 0:
                await failure(scope, receive, send_with_headers)
            # Otherwise part of a response was sent: uvicorn closes the connection, which the client notices.
        # As received, percent-encoded: no line breaks, no query string.
        path = scope.get("raw_path", b"").partition(b"?")[0].decode("ascii", "backslashreplace")[:MAX_PATH_LENGTH]
        is_poll = path in DEBUG_PATHS or (path.startswith(f"{UI}/") and _asks_again(scope))
        level = logging.DEBUG if is_poll and status < 400 else logging.INFO
        took_ms, user = (time.monotonic() - start_s) * 1000, scope["state"].get("user") or "-"
        log.log(level, "%s %s %d %.0f ms %s", scope["method"], path, status, took_ms, user)


def _asks_again(scope: Scope) -> bool:
    """Returns True if an open page polls for changes."""
    return scope["method"] == "GET" and any(name == b"hx-request" for name, _ in scope["headers"])


class BodyLimitMiddleware:
    """Reads the complete body of a request, up to the limit, before it passes the request on."""

    def __init__(self, app: ASGIApp, *, max_bytes: int = MAX_JSON_BYTES, timeout_s: float = BODY_TIMEOUT_S):
        self._app, self._max_bytes, self._timeout_s = app, max_bytes, timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        streamed = scope["type"] == "http" and scope["method"] == "PUT" and scope["path"].startswith(f"{PACKAGES}/")
        if scope["type"] != "http" or streamed or scope["method"] in WITHOUT_BODY:
            await self._app(scope, receive, send)
            return
        try:
            async with asyncio.timeout(self._timeout_s):
                body = await self._read(Headers(scope=scope), receive)
        except TimeoutError:
            raise TooSlowError(
                f"the request's body did not arrive within {self._timeout_s:.0f} s: send it again"
            ) from None
        if body is not None:
            await self._app(scope, _replay(body, receive), send)

    async def _read(self, headers: Headers, receive: Receive) -> bytes | None:
        """Returns the body; None if the client has disconnected."""
        if int(headers.get("content-length", "0")) > self._max_bytes:
            raise self._too_large()
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            if len(body) > self._max_bytes:
                raise self._too_large()
            if not message.get("more_body", False):
                return bytes(body)

    def _too_large(self) -> TooLargeError:
        return TooLargeError(f"the request's body is larger than {self._max_bytes} bytes, the limit for a recipe")


def _replay(body: bytes, receive: Receive) -> Receive:
    """Returns a `receive` function that returns the body first, then the messages after it."""
    sent = False

    async def replayed() -> Message:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed


def bare_app(*, openapi_url: str | None, **options: Any) -> FastAPI:
    """Returns a FastAPI app without redirects, telemetry, and pages that load third-party scripts."""
    return FastAPI(
        openapi_url=openapi_url,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        telemetry=NO_TELEMETRY,
        **options,
    )
