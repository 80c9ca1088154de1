"""The page of a run: its state with the reason, the course of its error rate, its attempts and logs; its report."""

from time import time
from typing import Annotated

import yaml
from anyio.to_thread import run_sync
from fastapi import APIRouter, Depends, Path, Query, Request, Response
from pydantic import Field

from jobs.api.server.pages.drawings import Curves, bars_of, curves_of
from jobs.api.server.pages.page_backend import PagesDep, RunsDep
from jobs.api.server.pages.page_rendering import page
from jobs.api.server.routes.run_routes import MAX_ATTEMPT, QueryString
from jobs.errors import NotFoundError
from jobs.lifecycle import RunState
from jobs.model import Progress, Run
from trainers.run_folder.layout import REPORT, RunFolder

MAX_KEY = 2000
# Recordings and curves of a report are in it; most have a tenth of this.
MAX_REPORT_BYTES = 64 << 20
# A report is one file with its style in it, and comes from the run folder, where others write: it is shown as a
# document that belongs to no site, loads nothing and runs nothing.
REPORT_POLICY = (
    "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; media-src data:; frame-ancestors 'none'"
)

router = APIRouter()


async def valid_key(key: Annotated[str, Path()]) -> str:
    """A run's name, or its folder or URL; what cannot be one is not found."""
    if len(key) > MAX_KEY or not key.isprintable():
        raise NotFoundError("no run has such a name")
    return key


KeyDep = Annotated[str, Depends(valid_key)]


class RunQuery(QueryString):
    """Whose logs are shown."""

    attempt: int | None = Field(None, ge=1, le=MAX_ATTEMPT)


@router.get("/runs/{key:path}")
async def show_run(
    request: Request, key: KeyDep, query: Annotated[RunQuery, Query()], pages: PagesDep, runs: RunsDep
) -> Response:
    """Shows a run."""

    def read() -> Response:
        run, attempts = runs.run(key), runs.attempts(key)
        progress, now_s = run.progress, time()
        return page(
            request,
            "run.html.j2",
            title=run.id,
            key_text=key,
            run=run,
            progress=progress,
            curve=_course_of(progress) if progress is not None else None,
            bars=bars_of(attempts, now_s),
            attempt=query.attempt,
            can_stop=not run.state.ended,
            can_resume=can_resume(run),
            config=yaml.safe_dump(run.config, allow_unicode=True, sort_keys=False),
            now_s=now_s,
        )

    return await run_sync(read, limiter=pages.threads.lists)


@router.get("/report/{key:path}")
async def show_report(key: KeyDep, pages: PagesDep, runs: RunsDep) -> Response:
    """Shows the report that the run has written: when it had finished, or after its last validation."""

    def read() -> Response:
        run = runs.run(key)
        return Response(
            pages.folders.read(run, _report_of),
            media_type="text/html",
            headers={"Content-Security-Policy": REPORT_POLICY, "Referrer-Policy": "no-referrer"},
        )

    return await run_sync(read, limiter=pages.folder_threads)


def can_resume(run: Run) -> bool:
    """Whether it has ended without success; one without a queue is continued where a command runs."""
    return bool(run.queue) and run.state in (RunState.FAILED, RunState.STOPPED)


def _course_of(progress: Progress) -> Curves | None:
    context = ", short context" if progress.full_context_wer is not None else ""
    title = f"WER on validation{context}, the last {len(progress.wers)}, percent"
    return curves_of(title, {"WER": [*enumerate(progress.wers, start=1)]})


def _report_of(folder: RunFolder) -> bytes:
    if not folder.storage.exists(REPORT):
        raise NotFoundError(
            f"{folder.name} has no report yet: a run writes it after each validation; until then, "
            f"`rayscribe report {folder.name}` does"
        )
    return folder.storage.read_small(REPORT, MAX_REPORT_BYTES)
