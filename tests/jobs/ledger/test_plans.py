"""How SQLite reads what must stay fast with many runs: by an index, in its order, whatever is in the tables."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event

from jobs.ledger import Ledger
from jobs.model import RunFilter, RunState
from tests.jobs.ledger.builders import add

STATES = [RunState.QUEUED, RunState.FAILED]
CURSOR = "WzEwMDAuMCwgImEiXQ"


@pytest.fixture
def ledger(sqlite_url: str) -> Iterator[Ledger]:
    ledger = Ledger.open(sqlite_url)
    add(ledger, "a")
    yield ledger
    ledger.close()


def plan_of(call: Callable[[], object]) -> list[str]:
    """The steps of the last statement that a call executes."""
    plans: list[list[str]] = []

    def explain(connection: Connection, cursor: Any, statement: str, parameters: Any, *_: object) -> None:
        if statement.startswith("SELECT"):
            own = cursor.connection.cursor()
            plans.append([row[3] for row in own.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)])

    event.listen(Engine, "before_cursor_execute", explain)
    try:
        call()
    finally:
        event.remove(Engine, "before_cursor_execute", explain)
    return plans[-1]


@pytest.mark.parametrize(
    ("wanted", "index"),
    [
        ({}, "ix_runs_newest"),
        ({"states": STATES}, "ix_runs_state"),
        ({"user": "ana"}, "ix_runs_user"),
        ({"user": "ana", "states": STATES}, "ix_runs_user"),
        ({"queue": "default"}, "ix_runs_queue"),
        ({"queue": "default", "states": STATES}, "ix_runs_queue"),
        ({"tag": "x"}, "ix_run_tags_tag"),
        ({"tag": "x", "states": STATES}, "ix_run_tags_tag"),
    ],
)
@pytest.mark.parametrize("cursor", [None, CURSOR])
def test_each_list_has_an_index_that_it_reads_in_order(
    ledger: Ledger, wanted: dict[str, Any], index: str, cursor: str | None
) -> None:
    steps = plan_of(lambda: ledger.runs(RunFilter(**wanted), cursor=cursor))
    read = [place for place, step in enumerate(steps) if f"USING COVERING INDEX {index}" in step]
    assert len(read) == (len(wanted.get("states", RunState)) if wanted else 1)
    others = [step for step in steps if re.match(r"(SEARCH|SCAN) (runs|run_tags|requests)", step)]
    # The rows of a page are then looked up by their ids.
    assert len(others) == len(read) + 2
    # What an index gives is in order; only pages, when they are merged, are sorted.
    assert not [steps[place + 1] for place in read if "TEMP B-TREE" in steps[place + 1]]


@pytest.mark.parametrize(
    ("call", "step"),
    [
        (lambda ledger: ledger.run("a"), "SEARCH runs USING INDEX sqlite_autoindex_runs_1 (id=?)"),
        (lambda ledger: ledger.scheduler.waiting(), "SEARCH runs USING INDEX ix_runs_state (state=?)"),
        (lambda ledger: ledger.scheduler.holding(), "SEARCH runs USING INDEX ix_runs_state (state=?)"),
        (lambda ledger: ledger.active_runs(), "SEARCH runs USING INDEX ix_runs_state (state=?)"),
        (lambda ledger: ledger.usage.runs(), "SCAN runs USING COVERING INDEX ix_runs_queue"),
        (lambda ledger: ledger.events("a"), "SEARCH events USING INDEX ix_events_run (run_id=? AND number>?)"),
        (lambda ledger: ledger.events(None), "SEARCH events USING INTEGER PRIMARY KEY (rowid>?)"),
        (lambda ledger: ledger.tokens.user_of("x"), "SEARCH tokens USING INDEX sqlite_autoindex_tokens_2 (sha256=?)"),
    ],
)
def test_nothing_else_reads_more_than_it_gives(ledger: Ledger, call: Callable[[Ledger], object], step: str) -> None:
    assert step in plan_of(lambda: call(ledger))
