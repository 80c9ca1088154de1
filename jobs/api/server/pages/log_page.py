"""The log of a run, which the page follows: each part ends with an element that requests the next part."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Query, Request, Response

from jobs.api.protocol import UI
from jobs.api.server.dependencies import in_threads
from jobs.api.server.pages.page_rendering import RunsDep, page
from jobs.api.server.pages.run_page import KeyDep
from jobs.api.server.routes.run_routes import LogsQuery
from jobs.errors import ClusterError, ConflictError
from jobs.model import LogLine
from jobs.service.operations import RunOperations
from trainers.errors import StorageError

# Only the last lines of each part are shown; `rayscribe logs` prints all.
LINES = 500
# After a part with more lines than this, newer lines are likely, so the next part is requested at once.
MANY_LINES = 2000
POLL, AT_ONCE, LATER = "every 2s", "load delay:50ms", "every 5s"

router = APIRouter()


@dataclass(frozen=True)
class LogPart:
    """Lines of a log, with URL and trigger (htmx) of the next part; `next_url` is None if there is no next part."""

    attempt: int | None
    lines: list[LogLine]
    left_out: int = 0
    notice: str = ""
    next_url: str | None = None
    trigger: str = POLL


class PartQuery(LogsQuery):
    """Query of a part of the log: the API's fields, and `follow`, which also shows later attempts."""

    follow: bool = False

    @property
    def follows(self) -> bool:
        """True if later attempts are shown too."""
        return self.follow or self.attempt is None


@router.get("/logs/{key:path}")
@in_threads("logs")
def show_logs(request: Request, key: KeyDep, query: Annotated[PartQuery, Query()], runs: RunsDep) -> Response:
    """Shows the lines since the cursor, as a part of a page for htmx, otherwise as a page."""
    part = _part(runs, key, query)
    template = "log_part.html.j2" if "hx-request" in request.headers else "logs.html.j2"
    return page(request, template, title=f"Log of {key}", key_text=key, part=part)


def _part(runs: RunOperations, key: str, query: PartQuery) -> LogPart:
    def next_part(attempt: int | None, cursor: str | None) -> str:
        follow = "true" if query.follows else None
        fields = {"attempt": attempt, "source": query.source, "cursor": cursor, "follow": follow}
        given = {name: value for name, value in fields.items() if value}
        return f"{UI}/logs/{quote(key, safe='')}?{urlencode(given)}"

    try:
        found = runs.logs(key, attempt=query.attempt, source=query.source, cursor=query.cursor)
    except ConflictError as error:  # no attempt yet
        return LogPart(None, [], 0, str(error), next_part(None, None), LATER)
    except (ClusterError, StorageError) as error:
        again = next_part(query.attempt, query.cursor)
        return LogPart(query.attempt, [], 0, f"{error}; trying again", again, LATER)
    lines, left_out = found.lines[-LINES:], max(0, len(found.lines) - LINES)
    part = partial(LogPart, found.attempt, lines, left_out)
    if not found.ended:
        return part("", next_part(found.attempt, found.cursor), AT_ONCE if len(found.lines) > MANY_LINES else POLL)
    run = runs.run(key) if query.follows else None
    if run is not None and run.attempt > found.attempt:
        return part(f"attempt {found.attempt + 1} follows", next_part(found.attempt + 1, None), AT_ONCE)
    if run is not None and not run.state.ended:  # another attempt may follow
        return part("", next_part(found.attempt, found.cursor), LATER)
    is_empty = not found.lines and not query.cursor
    return part(f"end of attempt {found.attempt}{': its output was not kept' if is_empty else ''}")
