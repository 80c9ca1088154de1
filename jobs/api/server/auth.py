"""Who may ask: a bearer token for everything; or, on loopback and when told so, anybody on this machine.

Two things are public. `/healthz` says whether the service answers, for a load balancer. `/openapi.json` is the same for
every installation of a version, and holds nothing of this one; generators of clients read it without a token. There is
no /docs, because that page would load a script from elsewhere into the place where people paste their tokens.

Without tokens, being on this machine is the only proof. A browser on this machine lends it to any page that it shows,
so requests that come from a page are told apart: by the Origin that browsers send with them, by Sec-Fetch-Site, and by
the Host, which is a foreign name where a page has had its own name resolved to 127.0.0.1 (DNS rebinding).
"""

from collections.abc import Callable
from urllib.parse import urlsplit

from fastapi.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from jobs.addresses import is_loopback
from jobs.api.protocol import HEALTH, OPENAPI
from jobs.api.server.error_responses import answer
from jobs.errors import AuthError
from trainers.errors import ConfigError

PUBLIC = (HEALTH, OPENAPI)
SCHEME = "Bearer"
MOST_TOKEN = 200
READING = ("GET", "HEAD")

NO_TOKEN = (
    "no token: send `Authorization: Bearer rsk_…`; `rayscribe` takes it from RAYSCRIBE_TOKEN, from the file that "
    "RAYSCRIBE_TOKEN_FILE names, or from ~/.rayscribe/token. Who runs the service can make one"
)
UNKNOWN_TOKEN = (
    "this token is not one of this service: it was revoked, or is another service's; check RAYSCRIBE_TOKEN, "
    "RAYSCRIBE_TOKEN_FILE and ~/.rayscribe/token, or ask who runs the service for a new one"
)


class TokenGate:
    """Lets in who has a token, and says whose it is (`state.user`)."""

    def __init__(self, app: ASGIApp, user_of: Callable[[str], str | None]):
        """Takes the app inside, and what knows whose a token is."""
        self._app, self._user_of = app, user_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] == "http" and scope["path"] not in PUBLIC:
            scheme, _, token = Headers(scope=scope).get("authorization", "").partition(" ")
            token = token.strip()
            if scheme.lower() != SCHEME.lower() or not token:
                await _unauthorized(NO_TOKEN, SCHEME)(scope, receive, send)
                return
            user = await run_in_threadpool(self._user_of, token) if len(token) <= MOST_TOKEN else None
            if user is None:
                await _unauthorized(UNKNOWN_TOKEN, f'{SCHEME} error="invalid_token"')(scope, receive, send)
                return
            scope["state"]["user"] = user
        await self._app(scope, receive, send)


class LoopbackGate:
    """Lets in every program on this machine, and no page of a browser; all are one user."""

    def __init__(self, app: ASGIApp, user: str):
        """Takes the app inside, and who everybody is."""
        self._app, self._user = app, user

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] == "http":
            refusal = refusal_of(scope["method"], Headers(scope=scope))
            if refusal is not None:
                await answer(AuthError(refusal), 403)(scope, receive, send)
                return
            scope["state"]["user"] = self._user
        await self._app(scope, receive, send)


def refusal_of(method: str, headers: Headers) -> str | None:
    """Why a request does not come from a program on this machine; None where it may."""
    host = headers.get("host", "")
    if not is_loopback(_name_of(host)):
        return (
            "the request names another host than this machine's loopback: ask http://127.0.0.1 or http://localhost, or "
            "run the service without --no-auth"
        )
    origin = headers.get("origin")
    if origin is not None and origin.lower() != f"http://{host.lower()}":
        return "the request comes from a page of another site: without tokens (--no-auth), pages may not ask"
    site = headers.get("sec-fetch-site", "none")
    if method not in READING and site not in ("none", "same-origin"):
        return "the request comes from a page of another site: without tokens (--no-auth), pages may not ask"
    return None


def refuse_open(host: str) -> None:
    """Makes sure that a service without tokens is not reachable from elsewhere.

    Args:
        host: The address that it would be bound to.

    Raises:
        ConfigError: it is not a loopback address.
    """
    if not is_loopback(host):
        raise ConfigError(
            f"--no-auth with --host {host}: everybody who reaches that address could run code on the cluster; "
            "bind to 127.0.0.1, or leave --no-auth out and give out tokens"
        )


def _name_of(host: str) -> str:
    """The name in a Host header, without its port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _unauthorized(message: str, challenge: str) -> ASGIApp:
    return answer(AuthError(message), 401, {"WWW-Authenticate": challenge})
