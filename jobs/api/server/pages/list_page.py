"""The list of runs: filtered, in pages, and kept up to date while it is open."""

from collections.abc import Mapping
from time import time
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from jobs.api.server.dependencies import in_threads
from jobs.api.server.pages.page_access import HOME
from jobs.api.server.pages.page_rendering import PagesDep, RunsDep, page
from jobs.api.server.routes.run_routes import CURSOR, Filter, QueryString
from jobs.model import ENDED, HOLDING, WAITING, RunFilter, RunState
from trainers.errors import ConfigError

RUNS = 50
# Groups of states that the form offers, next to single states.
GROUPS: Mapping[str, frozenset[RunState]] = {"waiting": WAITING, "running": HOLDING, "ended": ENDED}
CHOICES = (*GROUPS, *RunState)

router = APIRouter()


class ListQuery(QueryString):
    """Filters and paging, as the page's form sends them; an empty field filters nothing."""

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
                raise ConfigError(f"state {self.state!r} does not exist: choose of {', '.join(CHOICES)}") from None
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
        now_s=time(),
    )
