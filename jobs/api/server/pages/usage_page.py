"""The page of queues, and of GPU-hours by user and queue."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response

from jobs.api.server.dependencies import in_threads
from jobs.api.server.pages.page_rendering import PagesDep, RunsDep, page
from jobs.api.server.routes.run_routes import QueryString
from jobs.model import Usage, UsageBy
from jobs.service.operations import RunOperations
from jobs.service.service import Recent

SECONDS_PER_DAY = 86_400.0
# Days by their name in the page's form; None: all time.
PERIODS: dict[str, float | None] = {"1": 1.0, "7": 7.0, "30": 30.0, "90": 90.0, "all": None}
SHOWN: tuple[UsageBy, ...] = ("user", "queue")
# A sum reads all attempts of its period, half a second for a hundred thousand of them.
KEPT_S = 60.0

router = APIRouter()


class UsageQuery(QueryString):
    """The period over which usage is summed."""

    days: Literal["1", "7", "30", "90", "all"] = "30"


@dataclass(frozen=True)
class UsageTables:
    """Usage by each of SHOWN, and when it was summed: seconds since 1970, UTC."""

    at_s: float
    rows: dict[UsageBy, list[Usage]]


class RecentUsage:
    """The usage of each period, summed at most once a minute for all users together."""

    def __init__(self, clock: Callable[[], float] = time.time):
        # One cache per period, so that a long one does not block the others.
        self._recent = {days: Recent[UsageTables](KEPT_S, clock) for days in PERIODS}

    def of(self, days: str, runs: RunOperations) -> UsageTables:
        """Returns the usage of a period of PERIODS."""
        period = PERIODS[days]

        def read(now_s: float) -> UsageTables:
            since_s = None if period is None else now_s - period * SECONDS_PER_DAY
            return UsageTables(now_s, {by: runs.usage(by, since_s=since_s) for by in SHOWN})

        return self._recent[days].get(read)


@router.get("/usage")
@in_threads("lists")
def show_usage(request: Request, query: Annotated[UsageQuery, Query()], pages: PagesDep, runs: RunsDep) -> Response:
    """Shows queues with their limits and runs, and the hours of users and queues."""
    recent: RecentUsage = request.app.state.recent_usage
    return page(
        request,
        "usage.html.j2",
        title="Queues and usage",
        queues=pages.queues(),
        days=query.days,
        periods=PERIODS,
        usage=recent.of(query.days, runs),
    )
