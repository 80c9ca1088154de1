"""How SQLite reads what must stay fast with many runs: by an index, in its order, whatever is in the tables."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event

from jobs.ledger import Ledger
from jobs.model import RunFilter
from tests.jobs.ledger.builders import add


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
    ("call", "step"),
    [
        (lambda ledger: ledger.run("a"), "SEARCH runs USING INDEX sqlite_autoindex_runs_1 (id=?)"),
        (lambda ledger: ledger.scheduler.waiting(), "SEARCH runs USING INDEX ix_runs_state (state=?)"),
        (lambda ledger: ledger.scheduler.holding(), "SEARCH runs USING INDEX ix_runs_state (state=?)"),
        (lambda ledger: ledger.active_runs(), "SEARCH runs USING INDEX ix_runs_state (state=?)"),
        (lambda ledger: ledger.usage.runs(), "SCAN runs USING COVERING INDEX ix_runs_queue"),
        (
            lambda ledger: ledger.runs(RunFilter(user="ana")),
            "SEARCH runs USING COVERING INDEX ix_runs_user_newest (user=?)",
        ),
        (
            lambda ledger: ledger.runs(RunFilter(queue="default")),
            "SEARCH runs USING COVERING INDEX ix_runs_queue_newest (queue=?)",
        ),
        (lambda ledger: ledger.events("a"), "SEARCH events USING INDEX ix_events_run (run_id=? AND number>?)"),
        (lambda ledger: ledger.events(None), "SEARCH events USING INTEGER PRIMARY KEY (rowid>?)"),
        (lambda ledger: ledger.tokens.user_of("x"), "SEARCH tokens USING INDEX sqlite_autoindex_tokens_2 (sha256=?)"),
    ],
)
def test_nothing_else_reads_more_than_it_gives(ledger: Ledger, call: Callable[[Ledger], object], step: str) -> None:
    assert step in plan_of(lambda: call(ledger))
