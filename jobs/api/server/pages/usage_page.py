"""Queues, and who has used how many GPU-hours."""

from time import time
from typing import Annotated, Literal

from anyio.to_thread import run_sync
from fastapi import APIRouter, Query, Request, Response

from jobs.api.server.pages.page_backend import PagesDep, RunsDep
from jobs.api.server.pages.page_rendering import page
from jobs.api.server.routes.run_routes import QueryString

SECONDS_PER_DAY = 86_400.0
# By what the form on the page names them; None: all time.
PERIODS: dict[str, float | None] = {"1": 1.0, "7": 7.0, "30": 30.0, "90": 90.0, "all": None}

router = APIRouter()


class UsageQuery(QueryString):
    """How far back usage is summed."""

    days: Literal["1", "7", "30", "90", "all"] = "30"


@router.get("/usage")
async def show_usage(
    request: Request, query: Annotated[UsageQuery, Query()], pages: PagesDep, runs: RunsDep
) -> Response:
    """Shows queues with their limits and runs, and the hours of users and queues."""

    def read() -> Response:
        days = PERIODS[query.days]
        since_s = time() - days * SECONDS_PER_DAY if days is not None else None
        return page(
            request,
            "usage.html.j2",
            title="Queues and usage",
            queues=pages.queues(),
            days=query.days,
            periods=PERIODS,
            tables=[("user", runs.usage("user", since_s=since_s)), ("queue", runs.usage("queue", since_s=since_s))],
        )

    return await run_sync(read, limiter=pages.threads.lists)
