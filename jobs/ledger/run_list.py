"""Lists of runs, newest first, a page at a time, in the same time however many runs there are.

Each requested state is a branch of its own, which reads one index in its order and stops after a page; the branches
are merged. An `IN` over states would have to sort all runs in them.
"""

from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, exists, select, tuple_, union_all

from jobs.ledger import records, tables
from jobs.lifecycle import RunState
from jobs.model import ALL_RUNS, Page, Position, Run, RunFilter, cursor_after, position_of, read_cursor
from trainers.config.submitted import config_text
from trainers.errors import ConfigError

MAX_ROWS = 10_000
# A page ends with the run that goes beyond this, so that large configs do not fill the memory of whoever reads it.
MAX_CONFIG_CHARACTERS = 4_000_000
ROWS_AT_ONCE = 20


def page_of(connection: Connection, wanted: RunFilter, limit: int, cursor: str | None) -> Page:
    """Reads a page of runs.

    Raises:
        ConfigError: the limit is less than 1, or the cursor is not one that a page returned.
    """
    limit = checked_limit(limit)
    before = read_cursor(cursor)
    found = _newest(wanted, limit + 1, before).subquery()
    statement = records.select_runs().join(found, found.c.id == tables.runs.c.id)
    statement = statement.order_by(found.c.submitted_s.desc(), found.c.id.desc())
    runs: list[Run] = []
    characters, more = 0, False
    with connection.execute(statement.execution_options(yield_per=ROWS_AT_ONCE)) as rows:
        for row in rows:
            if more := len(runs) == limit or characters > MAX_CONFIG_CHARACTERS:
                break
            runs.append(records.record_of(Run, row))
            characters += len(config_text(runs[-1].config))
    return Page(runs=runs, next_cursor=cursor_after(position_of(runs[-1])) if more else None)


def checked_limit(limit: int) -> int:
    """How many rows to read at most; ConfigError for less than 1."""
    if limit < 1:
        raise ConfigError(f"limit is {limit}: ask for 1 to {MAX_ROWS} rows")
    return min(limit, MAX_ROWS)


def _newest(wanted: RunFilter, limit: int, before: Position | None) -> Select[Any]:
    if wanted == ALL_RUNS:
        return _branch(wanted, None, limit, before)
    branches = [_branch(wanted, state, limit, before).subquery() for state in sorted(set(wanted.states or RunState))]
    merged = union_all(*(select(branch.c.id, branch.c.submitted_s) for branch in branches)).subquery()
    return select(merged).order_by(merged.c.submitted_s.desc(), merged.c.id.desc()).limit(limit)


def _branch(wanted: RunFilter, state: RunState | None, limit: int, before: Position | None) -> Select[Any]:
    """The newest runs in one state (None: in any)."""
    runs, tags = tables.runs, tables.run_tags
    conditions: list[ColumnElement[bool]] = []
    of_run = [(runs.c.queue, wanted.queue), (runs.c.user, wanted.user)]
    on_run = [column == value for column, value in of_run if value is not None]
    if wanted.tag is None:
        run_id, submitted_s, table = runs.c.id, runs.c.submitted_s, runs
        conditions += on_run
    else:
        run_id, submitted_s, table = tags.c.run_id, tags.c.submitted_s, tags
        conditions.append(tags.c.tag == wanted.tag)
        if on_run:
            conditions.append(exists().where(runs.c.id == tags.c.run_id, *on_run))
    if state is not None:
        conditions.append(table.c.state == state)
    if before is not None:
        conditions.append(tuple_(submitted_s, run_id) < tuple_(*before))
    statement = select(run_id.label("id"), submitted_s.label("submitted_s")).where(*conditions)
    return statement.order_by(submitted_s.desc(), run_id.desc()).limit(limit)
