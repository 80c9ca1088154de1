"""Bodies of requests are bounded in size and in time before anything reads them; uploads of packages have their own."""

import asyncio

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jobs.api.protocol import MOST_JSON_BYTES, PACKAGES, TooLargeError, TooSlowError

# Nobody who means it takes longer for a megabyte; who sends a byte a minute would hold memory and a connection.
BODY_DEADLINE_S = 30.0
WITHOUT_BODY = ("GET", "HEAD", "OPTIONS")


class BodyLimit:
    """Reads a request's body whole, up to the limit, before the app inside sees the request."""

    def __init__(self, app: ASGIApp, *, most_bytes: int = MOST_JSON_BYTES, deadline_s: float = BODY_DEADLINE_S):
        """Takes the app inside, and the bounds."""
        self._app, self._most, self._deadline_s = app, most_bytes, deadline_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI.

        Raises:
            TooLargeError: the body is larger than the limit.
            TooSlowError: it did not come in time.
        """
        streamed = scope["type"] == "http" and scope["method"] == "PUT" and scope["path"].startswith(f"{PACKAGES}/")
        if scope["type"] != "http" or streamed or scope["method"] in WITHOUT_BODY:
            await self._app(scope, receive, send)
            return
        try:
            async with asyncio.timeout(self._deadline_s):
                body = await self._read(Headers(scope=scope), receive)
        except TimeoutError:
            raise TooSlowError(
                f"the request did not come whole within {self._deadline_s:.0f} s: send it again"
            ) from None
        if body is not None:
            await self._app(scope, _replay(body, receive), send)

    async def _read(self, headers: Headers, receive: Receive) -> bytes | None:
        """The body; None where the client has gone."""
        if int(headers.get("content-length", "0")) > self._most:
            raise self._too_large()
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            if len(body) > self._most:
                raise self._too_large()
            if not message.get("more_body", False):
                return bytes(body)

    def _too_large(self) -> TooLargeError:
        return TooLargeError(f"the request's body is larger than {self._most} bytes: a recipe is not so large")


def _replay(body: bytes, receive: Receive) -> Receive:
    """Gives the body once, then what comes after it."""
    given = False

    async def replayed() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed
