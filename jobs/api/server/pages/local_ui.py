"""rayscribe ui: the pages on this machine, for the runs of this user; no service is needed.

They show what `rayscribe list` does, of the local ledger and of runs without a queue. While they are served, a
controller advances the runs of the ledger, as while a command runs.
"""

from collections.abc import Callable
from urllib.parse import urlencode

from starlette.exceptions import HTTPException

from jobs.api.server.middleware import AccessLogMiddleware, BodyLimitMiddleware, LoopbackMiddleware, bare_app
from jobs.api.server.pages.page_access import SIGN_IN, access_by_link
from jobs.api.server.pages.page_app import add_pages, show_http_exception
from jobs.api.server.pages.page_rendering import PageAccess, PageBackend
from jobs.api.server.process import ended_by_signals, open_port, running_controller, server_of
from jobs.api.server.routes.service_routes import queues_view
from jobs.paths import current_user
from jobs.service.direct.all_runs import AllRuns
from jobs.service.standalone import POLL_S, StandaloneService, open_local

HOST = "127.0.0.1"


def serve_ui(port: int, show: Callable[[str], None]) -> None:
    """Serves until SIGTERM or SIGINT; `show` is given the address to open, which is good for one browser.

    Raises:
        ConfigError: the port cannot be opened.
    """
    with open_port(HOST, port) as listener, open_local() as local:
        access, token = access_by_link(current_user())
        server = server_of(ui_app(local, access))
        stop = ended_by_signals(server)
        show(f"http://{HOST}:{listener.getsockname()[1]}{SIGN_IN}?{urlencode({'token': token})}")
        with running_controller(local.controller, stop, POLL_S):
            server.run(sockets=[listener])


def ui_app(local: StandaloneService, access: PageAccess) -> AccessLogMiddleware:
    """The app: only pages, only for browsers of this machine, and only for who has the link."""
    runs = AllRuns(local.service)
    app = bare_app(openapi_url=None)
    add_pages(
        app,
        PageBackend(
            runs_of=lambda _: runs,
            queues=lambda: queues_view(local.ledger, local.queues),
            access=access,
            # A name may be that of several runs without a queue.
            key_of=lambda run: run.run_folder,
            # Each time the folders of runs without a queue are read, which may be in a bucket.
            poll_s=10,
        ),
    )
    app.add_exception_handler(HTTPException, show_http_exception)
    # Whose request it is, the link has told.
    return AccessLogMiddleware(LoopbackMiddleware(BodyLimitMiddleware(app), user=None))
