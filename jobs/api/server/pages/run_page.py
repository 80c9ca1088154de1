"""The pages of a run: state with reason, progress of the error rate, attempts; curves; report.

Charts are SVG. Stopping and resuming ask for confirmation on a page of their own.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import time
from typing import Annotated, Any

import yaml
from fastapi import APIRouter, Depends, Path, Query, Request, Response
from pydantic import Field
from starlette.responses import RedirectResponse

from jobs.api.server.dependencies import in_threads
from jobs.api.server.pages.page_access import HOME
from jobs.api.server.pages.page_rendering import PagesDep, RunsDep, page
from jobs.api.server.routes.run_routes import MAX_ATTEMPT, QueryString
from jobs.errors import ConflictError, NotFoundError
from jobs.model import Attempt, Progress, Run, RunState
from jobs.service.run_folders import MAX_JOURNAL_BYTES
from trainers.errors import RayscribeError
from trainers.run_folder.journal import Journal, accepted_metrics, deduplicate
from trainers.run_folder.layout import REPORT, RunFolder
from trainers.scoring.report.charts import Points, in_words, series_of

MAX_KEY = 2000
# Limit of a report, with its recordings and curves; most need a tenth of this.
MAX_REPORT_BYTES = 64 << 20
# A report is one file that includes its style. Others may write to its run folder, so it is shown in a sandbox, as a
# document that belongs to no site, loads nothing and runs nothing.
REPORT_POLICY = (
    "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; media-src data:; frame-ancestors 'none'"
)

# Size of the box of a chart, in units of the SVG.
WIDTH, HEIGHT = 1000, 200
# Keeps the bar of a very short attempt visible.
LEAST_WIDTH = 4
# Limit of each worker group's metrics; a hundred thousand ordinary steps need a third of this.
MAX_METRICS_BYTES = 32 << 20

router = APIRouter()


@dataclass(frozen=True)
class Curves:
    """Series in one chart, as points of polylines, scaled to the smallest and largest value of all.

    Attributes:
        lines: Name and points of each series.
        caption: Describes the chart in words.
    """

    title: str
    lines: Sequence[tuple[str, str]]
    least: float
    greatest: float
    caption: str


@dataclass(frozen=True)
class Bar:
    """An attempt on the time line of its run, from left to right."""

    attempt: Attempt
    left: int
    width: int


def curves_of(title: str, series: Mapping[str, Points]) -> Curves | None:
    """Returns the curves by step; None if no series has two finite values."""
    finite = {name: [(x, y) for x, y in points if math.isfinite(y)] for name, points in series.items()}
    found = {name: points for name, points in finite.items() if len(points) > 1}
    if not found:
        return None
    steps = [x for points in found.values() for x, _ in points]
    values = [y for points in found.values() for _, y in points]
    begin, least = min(steps), min(values)
    across, up = WIDTH / max(1, max(steps) - begin), HEIGHT / ((max(values) - least) or 1.0)
    lines = [
        (name, " ".join(f"{(x - begin) * across:.1f},{HEIGHT - (y - least) * up:.1f}" for x, y in points))
        for name, points in found.items()
    ]
    return Curves(title, lines, least, max(values), in_words(title, found))


def bars_of(attempts: Sequence[Attempt], now_s: float) -> list[Bar]:
    """Returns the bar of each attempt, on a time line from the start of the first to the last end or now."""
    if not attempts:
        return []
    begin_s = min(attempt.created_s for attempt in attempts)
    ends_s = [attempt.ended_s if attempt.ended_s is not None else now_s for attempt in attempts]
    span_s = max(max(ends_s) - begin_s, 1e-9)
    bars = []
    for attempt in attempts:
        width = max(LEAST_WIDTH, round(WIDTH * attempt.duration_s(now_s) / span_s))
        left = round(WIDTH * (attempt.created_s - begin_s) / span_s)
        bars.append(Bar(attempt, min(max(left, 0), WIDTH - LEAST_WIDTH), width))
    return bars


async def valid_key(key: Annotated[str, Path()]) -> str:
    """Returns a run's name, folder or URL; raises NotFoundError for a text that cannot be one."""
    if len(key) > MAX_KEY or not key.isprintable():
        raise NotFoundError("no run has such a name")
    return key


KeyDep = Annotated[str, Depends(valid_key)]


class RunQuery(QueryString):
    """Attempt whose logs are shown."""

    attempt: int | None = Field(None, ge=1, le=MAX_ATTEMPT)


@router.get("/runs/{key:path}")
@in_threads("lists")
def show_run(request: Request, key: KeyDep, query: Annotated[RunQuery, Query()], runs: RunsDep) -> Response:
    """Shows a run."""
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


@router.get("/report/{key:path}")
@in_threads("folders")
def show_report(request: Request, key: KeyDep, pages: PagesDep, runs: RunsDep) -> Response:
    """Shows the report that the run wrote after its last validation or at its end."""
    run = runs.run(key)
    return Response(
        pages.folders.read(run, _report_of),
        media_type="text/html",
        headers={"Content-Security-Policy": REPORT_POLICY, "Referrer-Policy": "no-referrer"},
    )


def can_resume(run: Run) -> bool:
    """Returns True if a run of a queue has failed or was stopped; runs without a queue are resumed by a command."""
    return bool(run.queue) and run.state in (RunState.FAILED, RunState.STOPPED)


def _course_of(progress: Progress) -> Curves | None:
    context = ", short context" if progress.full_context_wer is not None else ""
    title = f"WER on validation{context}, the last {len(progress.wers)}, percent"
    return curves_of(title, {"WER": [*enumerate(progress.wers, start=1)]})


def _report_of(folder: RunFolder) -> bytes:
    if not folder.storage.exists(REPORT):
        raise NotFoundError(
            f"{folder.name} has no report yet: the run writes one after each validation; to write one now, use "
            f"`rayscribe report {folder.name}`"
        )
    return folder.storage.read_small(REPORT, MAX_REPORT_BYTES)


@router.get("/curves/{key:path}")
@in_threads("folders")
def show_curves(request: Request, key: KeyDep, pages: PagesDep, runs: RunsDep) -> Response:
    """Shows loss, error rates, learning rate, speed and padding, if they were measured."""
    run = runs.run(key)
    try:
        series = [*series_of(pages.folders.read(run, _metrics_of))]
        problem = ""
    except RayscribeError as error:
        series, problem = [], f"not readable now: {error}"
    drawn = [found for title, of in series if (found := curves_of(title, of)) is not None]
    template = "curves_part.html.j2" if "hx-request" in request.headers else "curves.html.j2"
    title = f"Curves of {run.id}"
    return page(request, template, title=title, key_text=key, run=run, drawn=drawn, problem=problem)


def _metrics_of(folder: RunFolder) -> list[Any]:
    state = Journal(folder, most_bytes=MAX_JOURNAL_BYTES).read()
    lines = deduplicate(accepted_metrics(folder, state, most_bytes=MAX_METRICS_BYTES))
    return [json.loads(line) for line in lines.splitlines()]


@router.get("/stop/{key:path}")
@in_threads("lists")
def ask_stop(request: Request, key: KeyDep, runs: RunsDep) -> Response:
    """Asks for confirmation before a run is stopped."""
    run = runs.run(key)
    if run.state.ended:
        raise ConflictError(f"{run.id} has already ended: {run.state} · {run.reason}")
    saves = "It stops at once." if run.state.waiting else "It saves a last checkpoint first."
    again = " It can be resumed later." if run.queue else ""
    text = f"{saves}{again}"
    return page(request, "confirm.html.j2", title=f"Stop {run.id}?", key_text=key, text=text, label="Stop the run")


@router.post("/stop/{key:path}")
@in_threads("lists")
def stop(request: Request, key: KeyDep, runs: RunsDep) -> Response:
    """Stops a run, as the API does."""
    runs.stop(key)
    return _back(request)


@router.get("/resume/{key:path}")
@in_threads("lists")
def ask_resume(request: Request, key: KeyDep, runs: RunsDep) -> Response:
    """Asks for confirmation before a run is queued again."""
    run = runs.run(key)
    if not can_resume(run):
        raise ConflictError(f"{run.id} is {run.state}: only a failed or stopped run of a queue is resumed here")
    text = f"It waits in queue {run.queue} again, and continues from its last complete checkpoint."
    return page(request, "confirm.html.j2", title=f"Resume {run.id}?", key_text=key, text=text, label="Resume the run")


@router.post("/resume/{key:path}")
@in_threads("lists")
def resume(request: Request, key: KeyDep, runs: RunsDep) -> Response:
    """Queues a run again, as the API does."""
    runs.resume(key)
    return _back(request)


def _back(request: Request) -> Response:
    key = request.scope["raw_path"].decode("ascii", "replace").split("/", 3)[3]
    return RedirectResponse(f"{HOME}/{key}", 303)
