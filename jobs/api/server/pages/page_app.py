"""The app of the pages, mounted below /ui: middleware, routes, and errors as pages."""

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response

from jobs.api.protocol import ROOT, UI, status_of
from jobs.api.server.middleware import bare_app
from jobs.api.server.pages import compare_page, list_page, log_page, page_access, run_page, static_files, usage_page
from jobs.api.server.pages.page_access import HOME, CookieMiddleware
from jobs.api.server.pages.page_rendering import PageBackend, error_page
from jobs.api.server.pages.usage_page import RecentUsage
from trainers.errors import RayscribeError

ROUTERS = (list_page, run_page, log_page, usage_page, compare_page, static_files, page_access)


def add_pages(app: FastAPI, pages: PageBackend) -> None:
    """Adds the pages to an app, which redirects `/` and /ui to them; errors within the pages are shown as pages."""
    app.state.pages = pages

    @app.get(ROOT, include_in_schema=False)
    @app.get(UI, include_in_schema=False)
    @app.get(f"{UI}/", include_in_schema=False)
    async def first_page() -> Response:
        return RedirectResponse(HOME, 303)

    app.mount(UI, _page_app(pages))


def _page_app(pages: PageBackend) -> FastAPI:
    app = bare_app(openapi_url=None)
    app.state.pages, app.state.threads = pages, pages.threads
    app.state.recent_usage = RecentUsage()
    for module in ROUTERS:
        app.include_router(module.router)
    app.add_exception_handler(RayscribeError, _show_rayscribe_error)
    app.add_exception_handler(RequestValidationError, _show_validation_error)
    app.add_exception_handler(HTTPException, show_http_exception)
    app.add_exception_handler(Exception, _show_exception)
    app.add_middleware(CookieMiddleware, access=pages.access)
    return app


async def _show_rayscribe_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RayscribeError)
    return error_page(request, status_of(error), error)


async def _show_validation_error(request: Request, error: Exception) -> Response:
    return error_page(request, 422, "The address is not one that a page of this service leads to.")


async def show_http_exception(request: Request, error: Exception) -> Response:
    """Shows the page of an address that does not exist."""
    assert isinstance(error, HTTPException)
    return error_page(request, error.status_code, "There is no such page.")


async def _show_exception(request: Request, error: Exception) -> Response:
    return error_page(request, 500, "This is an error of the service, whose log has more.")
