"""The outermost layer: a line of log for every request, and an answer even where our own code fails.

The log says method, path, status, time and user. It has no query string, no header and no body, so that what a user
sends by mistake stays out of it.
"""

import logging
import time
import uuid

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jobs.api.protocol import HEALTH, METRICS, REQUEST_ID
from jobs.api.server.error_responses import answer, answer_unknown
from trainers.errors import RayscribeError

log = logging.getLogger(__name__)

# Asked every few seconds for ever; they would hide everything else.
QUIET = (HEALTH, METRICS)
MOST_PATH = 200
# Nothing that the API says is for a browser to keep, to sniff or to show inside another page.
HEADERS = (
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
)


class Guard:
    """ASGI layer around everything else."""

    def __init__(self, app: ASGIApp):
        """Takes the app inside."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began_s, request_id, status = time.monotonic(), uuid.uuid4().hex[:16], 0
        scope.setdefault("state", {})

        async def told(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                # The app's own headers, those of a page for example, go before ours.
                given = {name for name, _ in message["headers"]}
                ours = [item for item in HEADERS if item[0] not in given]
                message["headers"] = [*message["headers"], *ours, (REQUEST_ID.lower().encode(), request_id.encode())]
            await send(message)

        try:
            await self._app(scope, receive, told)
        except ClientDisconnect:
            status = status or 499
        except RayscribeError as error:  # raised in a layer, outside of the app's own handlers
            await answer(error)(scope, receive, told)
        except Exception as error:
            failed = answer_unknown(error, request_id)
            if status == 0:
                await failed(scope, receive, told)
            # Otherwise half an answer is out; uvicorn closes the connection, and the client sees that it is cut off.
        _tell(scope, status, time.monotonic() - began_s)


def _tell(scope: Scope, status: int, took_s: float) -> None:
    # As it came, percent-encoded: no line breaks, no query string.
    path = scope.get("raw_path", b"").partition(b"?")[0].decode("ascii", "backslashreplace")[:MOST_PATH]
    level = logging.DEBUG if path in QUIET and status < 400 else logging.INFO
    user = scope["state"].get("user", "-")
    log.log(level, "%s %s %d %.0f ms %s", scope["method"], path, status, took_s * 1000, user)
