"""Limits the size of request bodies and the time to receive them; uploads of packages have limits of their own."""

import asyncio

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jobs.api.protocol import MAX_JSON_BYTES, PACKAGES, TooLargeError, TooSlowError

# Enough for a megabyte over a slow connection; a client that sends a byte a minute would hold memory.
BODY_TIMEOUT_S = 30.0
WITHOUT_BODY = ("GET", "HEAD", "OPTIONS")


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
        """The body; None if the client has disconnected."""
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
    """Returns the body first, then the messages after it."""
    sent = False

    async def replayed() -> Message:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed
