"""The pages of all runs: the list, the comparison of runs that are ticked in it, and queues with their usage.

The list is filtered, shown in pages, and kept up to date while it is open.
"""

import time
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from jobs.api.server.dependencies import in_threads
from jobs.api.server.pages.page_access import HOME
from jobs.api.server.pages.page_rendering import PagesDep, RunsDep, page
from jobs.api.server.pages.run_page import MAX_KEY
from jobs.api.server.routes.run_routes import CURSOR, Filter, QueryString
from jobs.model import ENDED, HOLDING, WAITING, RunFilter, RunState, UsageBy
from trainers.errors import ConfigError, StorageError
from trainers.run_folder.layout import EVALUATION, RunFolder
from trainers.scoring.comparison.comparison import compare_named
from trainers.scoring.comparison.systems import System, differing_settings
from trainers.scoring.report.comparison_page import COMPARISON, comparison_values

RUNS = 50
# Groups of states that the form offers, next to single states.
GROUPS: Mapping[str, frozenset[RunState]] = {"waiting": WAITING, "running": HOLDING, "ended": ENDED}
CHOICES = (*GROUPS, *RunState)
# Limit of a comparison.
MOST_RUNS = 8
# Limit of one run's score files; a hundred thousand utterances need a quarter of this.
MAX_SCORES_BYTES = 64 << 20
TIMEOUT_S = 30.0
SECONDS_PER_DAY = 86_400.0
# Days by their name in the page's form; None for all time.
PERIODS: dict[str, float | None] = {"1": 1.0, "7": 7.0, "30": 30.0, "90": 90.0, "all": None}
SHOWN: tuple[UsageBy, ...] = ("user", "queue")

router = APIRouter()


class ListQuery(QueryString):
    """Filters and paging, as the page's form sends them; an empty field does not filter."""

    state: str = Field("", max_length=50)
    queue: Filter = ""
    user: Filter = ""
    tag: Filter = ""
    cursor: str | None = Field(None, pattern=CURSOR, max_length=2000)

    @property
    def wanted(self) -> RunFilter:
        """The runs to list; raises ConfigError for an unknown state."""
        states = GROUPS.get(self.state)
        if states is None and self.state:
            try:
                states = frozenset({RunState(self.state)})
            except ValueError:
                raise ConfigError(f"state {self.state!r} does not exist: choose one of {', '.join(CHOICES)}") from None
        return RunFilter(states or (), self.queue or None, self.user or None, self.tag or None)

    def with_cursor(self, cursor: str | None) -> str:
        """Returns the URL of another page of the same list."""
        fields = {**self.model_dump(exclude={"cursor"}), "cursor": cursor}
        return f"{HOME}?{urlencode({name: value for name, value in fields.items() if value})}"


@router.get("/runs")
@in_threads("lists")
def list_runs(request: Request, query: Annotated[ListQuery, Query()], pages: PagesDep, runs: RunsDep) -> Response:
    """Lists runs, newest submitted first."""
    found = runs.runs(query.wanted, limit=RUNS, cursor=query.cursor)
    queues = pages.queues().queues
    return page(
        request,
        "runs.html.j2",
        title="Runs",
        query=query,
        is_filtered=query.wanted != RunFilter(),
        choices=CHOICES,
        rows=[(pages.key_of(run), run) for run in found.runs],
        newest=query.with_cursor(None) if query.cursor else None,
        older=query.with_cursor(found.next_cursor) if found.next_cursor else None,
        waiting=sum(queue.waiting for queue in queues),
        running=sum(queue.holding for queue in queues),
        now_s=time.time(),
    )


class CompareQuery(QueryString):
    """Keys of the runs, and the split on which they were scored."""

    run: list[Annotated[str, Field(max_length=MAX_KEY)]] = Field([], max_length=100)
    split: str = Field("test", pattern=r"^[A-Za-z0-9_.-]+$", max_length=100)


@router.get("/compare")
@in_threads("folders")
def show_comparison(
    request: Request, query: Annotated[CompareQuery, Query()], pages: PagesDep, runs: RunsDep
) -> Response:
    """Compares each of the runs with the first."""
    keys = [*dict.fromkeys(query.run)]
    if not 2 <= len(keys) <= MOST_RUNS:
        raise ConfigError(f"{len(keys)} runs are ticked: tick 2 to {MOST_RUNS} in the list of runs")
    found = [runs.run(key) for key in keys]
    names = [run.id for run in found]
    shown = names if len({*names}) == len(names) else keys
    systems = [
        pages.folders.read(run, partial(_system, name, query.split), TIMEOUT_S)
        for name, run in zip(shown, found, strict=True)
    ]
    values = comparison_values(compare_named(systems), differing_settings(systems), query.split)
    return page(request, COMPARISON, **values)


def _system(name: str, split: str, folder: RunFolder) -> System:
    size_bytes = sum(entry.size_bytes for entry in folder.storage.list_files(EVALUATION))
    if size_bytes > MAX_SCORES_BYTES:
        raise StorageError(f"{folder.url}: its scores are too large for a page: use `rayscribe compare`")
    return System.of_folder(name, folder, split)


class UsageQuery(QueryString):
    """The period over which usage is summed."""

    days: Literal["1", "7", "30", "90", "all"] = "30"


@router.get("/usage")
@in_threads("lists")
def show_usage(request: Request, query: Annotated[UsageQuery, Query()], pages: PagesDep, runs: RunsDep) -> Response:
    """Shows queues with their limits and runs, and the hours of users and queues."""
    now_s, days = time.time(), PERIODS[query.days]
    since_s = None if days is None else now_s - days * SECONDS_PER_DAY
    return page(
        request,
        "usage.html.j2",
        title="Queues and usage",
        queues=pages.queues(),
        days=query.days,
        periods=PERIODS,
        at_s=now_s,
        usage={by: runs.usage(by, since_s=since_s) for by in SHOWN},
    )
