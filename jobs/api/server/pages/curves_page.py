"""What a run has measured by step, drawn: read from its folder, which may take longer than the page of the run."""

import json
from typing import Any

from anyio.to_thread import run_sync
from fastapi import APIRouter, Request, Response

from jobs.api.server.pages.drawings import curves_of
from jobs.api.server.pages.page_backend import PagesDep, RunsDep
from jobs.api.server.pages.page_rendering import page
from jobs.api.server.pages.run_page import KeyDep
from jobs.service.run_folders import MAX_JOURNAL_BYTES, UNREADABLE
from trainers.run_folder.journal import Journal, accepted_metrics, deduplicate
from trainers.run_folder.layout import RunFolder
from trainers.scoring.report.charts import series_of

# Of each worker group; a hundred thousand steps of ordinary lines have a third of this.
MAX_METRICS_BYTES = 32 << 20

router = APIRouter()


@router.get("/curves/{key:path}")
async def show_curves(request: Request, key: KeyDep, pages: PagesDep, runs: RunsDep) -> Response:
    """Shows loss, error rates, learning rate, speed and padding, as far as they were measured."""

    def read() -> Response:
        run = runs.run(key)
        try:
            series = [*series_of(pages.folders.read(run, _metrics_of))]
            problem = ""
        except UNREADABLE as error:
            series, problem = [], f"not readable now: {error}"
        drawn = [found for title, of in series if (found := curves_of(title, of)) is not None]
        template = "curves_part.html.j2" if "hx-request" in request.headers else "curves.html.j2"
        title = f"Curves of {run.id}"
        return page(request, template, title=title, key_text=key, run=run, drawn=drawn, problem=problem)

    return await run_sync(read, limiter=pages.folder_threads)


def _metrics_of(folder: RunFolder) -> list[Any]:
    state = Journal(folder, most_bytes=MAX_JOURNAL_BYTES).read()
    lines = deduplicate(accepted_metrics(folder, state, most_bytes=MAX_METRICS_BYTES))
    return [json.loads(line) for line in lines.splitlines()]
