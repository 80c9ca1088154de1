"""Stop and resume: a page that asks, and the change."""

from anyio.to_thread import run_sync
from fastapi import APIRouter, Request, Response
from starlette.responses import RedirectResponse

from jobs.api.server.pages.page_access import HOME
from jobs.api.server.pages.page_backend import PagesDep, RunsDep
from jobs.api.server.pages.page_rendering import page
from jobs.api.server.pages.run_page import KeyDep, can_resume
from jobs.errors import ConflictError

router = APIRouter()


@router.get("/stop/{key:path}")
async def ask_stop(request: Request, key: KeyDep, pages: PagesDep, runs: RunsDep) -> Response:
    """Asks whether a run is to be stopped."""

    def read() -> Response:
        run = runs.run(key)
        if run.state.ended:
            raise ConflictError(f"{run.id} has already ended: {run.state} · {run.reason}")
        saves = "It stops at once." if run.state.waiting else "It saves a last checkpoint first."
        again = " It can be resumed later." if run.queue else ""
        text = f"{saves}{again}"
        return page(request, "confirm.html.j2", title=f"Stop {run.id}?", key_text=key, text=text, label="Stop the run")

    return await run_sync(read, limiter=pages.threads.lists)


@router.post("/stop/{key:path}")
async def stop(request: Request, key: KeyDep, pages: PagesDep, runs: RunsDep) -> Response:
    """Stops a run, as the API does."""
    await run_sync(runs.stop, key, limiter=pages.threads.lists)
    return _back(request)


@router.get("/resume/{key:path}")
async def ask_resume(request: Request, key: KeyDep, pages: PagesDep, runs: RunsDep) -> Response:
    """Asks whether a run is to be queued again."""

    def read() -> Response:
        run = runs.run(key)
        if not can_resume(run):
            raise ConflictError(f"{run.id} is {run.state}: only a failed or stopped run of a queue is resumed here")
        text = f"It waits in queue {run.queue} again, and continues from its last complete checkpoint."
        return page(
            request, "confirm.html.j2", title=f"Resume {run.id}?", key_text=key, text=text, label="Resume the run"
        )

    return await run_sync(read, limiter=pages.threads.lists)


@router.post("/resume/{key:path}")
async def resume(request: Request, key: KeyDep, pages: PagesDep, runs: RunsDep) -> Response:
    """Queues a run again, as the API does."""
    await run_sync(runs.resume, key, limiter=pages.threads.lists)
    return _back(request)


def _back(request: Request) -> Response:
    """To the page of the run, by its name as it was sent."""
    key = request.scope["raw_path"].decode("ascii", "replace").split("/", 3)[3]
    return RedirectResponse(f"{HOME}/{key}", 303)
