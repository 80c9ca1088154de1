"""Authentication: bearer tokens, or with --no-auth, on loopback only, every program on this machine.

Three endpoints are public. `/` leads to the pages below /ui, which take a token in a cookie, see `pages.page_access`;
the API takes no cookie. `/healthz` is for load balancers. `/openapi.json` is the same for every installation of a
version, and generators of clients read it without a token. There is no /docs, because that page would load third-party
scripts where users enter their tokens.

Without tokens, access is limited to programs on this machine. A browser on this machine sends requests for any page
that it shows, so requests of web pages are rejected: by the Origin and Sec-Fetch-Site headers that browsers send, and
by the Host header, which has another name if a page had its own name resolved to 127.0.0.1 (DNS rebinding).
"""

from collections.abc import Callable

from fastapi.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from jobs.addresses import is_loopback, is_loopback_url
from jobs.api.protocol import HEALTH, OPENAPI, ROOT, UI
from jobs.api.server.error_responses import error_response
from jobs.errors import AuthError
from trainers.errors import ConfigError

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
    """Accepts requests of programs on this machine, but not of web pages; all have one user, if any."""

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
    """Why a request may not come from a program on this machine; None if it may."""
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
    """Refuses, by ConfigError, a host by which a service without tokens is reachable from another machine."""
    if not is_loopback(host):
        raise ConfigError(
            f"--no-auth with --host {host}: anybody who can reach that address could run code on the cluster; "
            "bind to 127.0.0.1, or leave --no-auth out and give out tokens"
        )


def _unauthorized(message: str, challenge: str) -> ASGIApp:
    return error_response(AuthError(message), 401, {"WWW-Authenticate": challenge})
