"""The outermost middleware: an access log, security headers, and a response to unexpected exceptions.

The log has method, path, status, time and user of each request. It has no query string, header or body, which may hold
secrets.
"""

import logging
import time
import uuid

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jobs.api.protocol import HEALTH, METRICS, REQUEST_ID, UI
from jobs.api.server.error_responses import error_response, internal_error_response
from trainers.errors import RayscribeError

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


class AccessLogMiddleware:
    """ASGI middleware around all others."""

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
            # Otherwise part of a response was sent; uvicorn closes the connection, and the client sees that.
        # As received, percent-encoded: no line breaks, no query string.
        path = scope.get("raw_path", b"").partition(b"?")[0].decode("ascii", "backslashreplace")[:MAX_PATH_LENGTH]
        is_poll = path in DEBUG_PATHS or (path.startswith(f"{UI}/") and _asks_again(scope))
        level = logging.DEBUG if is_poll and status < 400 else logging.INFO
        took_ms, user = (time.monotonic() - start_s) * 1000, scope["state"].get("user") or "-"
        log.log(level, "%s %s %d %.0f ms %s", scope["method"], path, status, took_ms, user)


def _asks_again(scope: Scope) -> bool:
    """Whether a page that is open reads what has changed."""
    return scope["method"] == "GET" and any(name == b"hx-request" for name, _ in scope["headers"])
