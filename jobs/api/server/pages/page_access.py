"""Access to the pages by a token in a cookie, which scripts cannot read and other sites' requests do not contain.

Only the pages use the cookie. The API ignores cookies, so that no page of another site can use it. Every change is a
POST, which is accepted only from these pages, however a browser treats SameSite. Like Go's
net/http.CrossOriginProtection, this checks Sec-Fetch-Site or, if that is missing (old browsers, plain HTTP), Origin
and Host.
"""

import hmac
import secrets
from collections.abc import Callable
from threading import Lock
from urllib.parse import parse_qs, quote, urlsplit

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from jobs.api.protocol import UI, status_of
from jobs.api.server.middleware import MAX_TOKEN_LENGTH, READ_METHODS
from jobs.api.server.pages.page_rendering import STATIC, PageAccess, error_page, here, page
from trainers.errors import RayscribeError

HOME = f"{UI}/runs"
SIGN_IN = f"{UI}/sign-in"
COOKIE = "rayscribe_token"
MAX_AGE_S = 30 * 86_400
UNKNOWN = "This token is not known: it was revoked, or belongs to another service."
USED = "This address was opened before, or belongs to an earlier `rayscribe ui`."

router = APIRouter()


def access_by_token(user_of: Callable[[str], str | None]) -> PageAccess:
    """Returns access by the API's tokens; revoking a token signs its browsers out."""
    return PageAccess(lambda token: token if user_of(token) is not None else None, user_of)


def access_by_link(user: str) -> tuple[PageAccess, str]:
    """Returns access by a new token, which is valid for one browser until this process ends, and the token."""
    token, cookie, lock = secrets.token_urlsafe(32), secrets.token_urlsafe(32), Lock()
    unused = [token]

    def cookie_of(given: str) -> str | None:
        with lock:
            if not (unused and hmac.compare_digest(given.encode(), unused[0].encode())):
                return None
            unused.clear()
            return cookie

    def user_of(given: str) -> str | None:
        return user if hmac.compare_digest(given.encode(), cookie.encode()) else None

    return PageAccess(cookie_of, user_of, by_link=True), token


class CookieMiddleware:
    """Rejects forged requests, and asks for a token; if `access` is None, outer middleware has set the user."""

    def __init__(self, app: ASGIApp, access: PageAccess | None):
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # Error handlers and templates need a request with the app.
        request = Request(scope)
        if scope["method"] not in READ_METHODS and not is_from_own_page(request.headers):
            reason = "This request does not come from a page of this service."
            await error_page(request, 403, reason)(scope, receive, send)
            return
        is_public = scope["path"] == SIGN_IN or scope["path"].startswith(f"{STATIC}/")
        if self._access is not None and not is_public:
            token = request.cookies.get(COOKIE, "")
            known = 0 < len(token) <= MAX_TOKEN_LENGTH
            try:
                user = await run_in_threadpool(self._access.user_of, token) if known else None
            except RayscribeError as error:
                await error_page(request, status_of(error), error)(scope, receive, send)
                return
            if user is None:
                await _signed_out(request)(scope, receive, send)
                return
            scope["state"]["user"] = user
        await self._app(scope, receive, send)


def is_from_own_page(headers: Headers) -> bool:
    """Returns True if a browser sent the request from a page of this service."""
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    host = headers.get("host", "").lower()
    try:
        return bool(host) and urlsplit(headers.get("origin", "")).netloc.lower() == host
    except ValueError:
        return False


@router.get("/sign-in")
async def show_sign_in(request: Request, token: str = "", next: str = HOME) -> Response:
    """Asks for a token, or signs in with the token of a link, which is valid once."""
    access: PageAccess = request.app.state.pages.access
    if access is None:
        return RedirectResponse(HOME, 303)
    if not (access.by_link and token):
        return _sign_in(request, next)
    cookie = access.cookie_of(token)
    if cookie is None:
        return _sign_in(request, next, USED)
    # No redirect, since browsers send no SameSite=Strict cookie in a chain of requests that another site's link begins.
    return _with_cookie(request, page(request, "reopen.html.j2", title="Signed in", url=HOME), cookie)


@router.post("/sign-in")
async def sign_in(request: Request) -> Response:
    """Writes a token to the cookie."""
    access: PageAccess = request.app.state.pages.access
    if access is None:
        return RedirectResponse(HOME, 303)
    fields = parse_qs((await request.body()).decode("utf-8", "replace"))
    token, target = ((fields.get(name) or [""])[0].strip() for name in ("token", "next"))
    cookie = await run_in_threadpool(access.cookie_of, token) if 0 < len(token) <= MAX_TOKEN_LENGTH else None
    if cookie is None:
        return _sign_in(request, target, UNKNOWN)
    return _with_cookie(request, RedirectResponse(_own_path(target), 303), cookie)


@router.post("/sign-out")
async def sign_out() -> Response:
    """Deletes the cookie."""
    response = RedirectResponse(SIGN_IN, 303)
    response.delete_cookie(COOKIE, path=UI, httponly=True, samesite="strict")
    return response


def _sign_in(request: Request, target: str, problem: str = "") -> Response:
    by_link = request.app.state.pages.access.by_link
    status, headers = (401, {"WWW-Authenticate": "Bearer"}) if problem else (200, {})
    values = {"title": "Sign in", "next": _own_path(target), "problem": problem, "by_link": by_link}
    return page(request, "sign_in.html.j2", status=status, headers=headers, **values)


def _signed_out(request: Request) -> Response:
    """Returns the response to a request without a known token, which depends on the kind of request."""
    if "hx-request" in request.headers:  # from an open page: htmx reloads it
        return Response(status_code=401, headers={"HX-Refresh": "true", "WWW-Authenticate": "Bearer"})
    if request.method in READ_METHODS and request.headers.get("sec-fetch-site") == "cross-site":
        # A request from a link in a chat has no cookie; the page's own second request does.
        return page(request, "reopen.html.j2", title="One moment", url=here(request))
    return RedirectResponse(f"{SIGN_IN}?next={quote(here(request), safe='')}", 303)


def _with_cookie(request: Request, response: Response, cookie: str) -> Response:
    # A proxy with TLS may be in front of the service; the browser's Origin shows whether it used TLS.
    with_tls = request.headers.get("origin", "").startswith("https://") or request.url.scheme == "https"
    response.set_cookie(COOKIE, cookie, max_age=MAX_AGE_S, path=UI, secure=with_tls, httponly=True, samesite="strict")
    return response


def _own_path(text: str) -> str:
    return text if text.startswith(f"{UI}/") and text.isascii() and text.isprintable() and "\\" not in text else HOME
