"""Converts between rows of the tables and records."""

import hashlib
import json
from typing import Any, TypeVar

from sqlalchemy import Connection, Row, Select, Table, select

from jobs.errors import NotFoundError, suggest_names
from jobs.ledger import tables
from jobs.model import Attempt, Record, Run

Kind = TypeVar("Kind", bound=Record)

_RUN_FIELDS = frozenset(Run.model_fields)
REQUEST_FIELDS = frozenset(column.name for column in tables.requests.c) & _RUN_FIELDS
_IN_RUNS = frozenset(column.name for column in tables.runs.c) & _RUN_FIELDS
# Fields that change during a run, or that differ between two submissions of the same request.
_NOT_REQUESTED = {
    *("uid", "code", "state", "reason", "attempt", "exit_code", "submitted_s", "queued_s", "updated_s", "ended_s"),
    *("not_before_s", "stop_requested_s", "progress", "version"),
}
# Similar names are searched among this number of newest runs.
_MAX_CANDIDATES = 500


def select_runs() -> Select[Any]:
    """Selects all fields of Run, unordered."""
    parts = [column for column in tables.runs.c if column.name in _IN_RUNS]
    parts += [column for column in tables.requests.c if column.name in REQUEST_FIELDS]
    return select(*parts).join_from(tables.runs, tables.requests, tables.requests.c.run_id == tables.runs.c.id)


def select_of(kind: type[Record], table: Table) -> Select[Any]:
    """Selects all columns of a table that are fields of a record, unordered."""
    return select(*(column for column in table.c if column.name in kind.model_fields))


def record_of(kind: type[Kind], row: Row[Any]) -> Kind:
    """Converts a row to a record; the row's columns are the record's fields."""
    return kind.model_validate(dict(row._mapping))


def find_run(connection: Connection, run_id: str) -> Run:
    """Reads a run; raises NotFoundError with similar names if it does not exist."""
    row = connection.execute(select_runs().where(tables.runs.c.id == run_id)).one_or_none()
    if row is None:
        raise no_such_run(connection, run_id)
    return record_of(Run, row)


def no_such_run(connection: Connection, run_id: str) -> NotFoundError:
    """Returns the error for a name that no run has."""
    newest = select(tables.runs.c.id).order_by(tables.runs.c.submitted_s.desc(), tables.runs.c.id.desc())
    names = connection.execute(newest.limit(_MAX_CANDIDATES)).scalars().all()
    return NotFoundError(
        f"no run is named {run_id}: {suggest_names(run_id, names, or_else='`rayscribe list` shows all')}"
    )


def insert_values(run: Run) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns a run's values in `runs` and in `requests`."""
    values = run.model_dump(mode="json")
    return (
        {name: values[name] for name in _IN_RUNS},
        {"run_id": run.id, **{name: values[name] for name in REQUEST_FIELDS}},
    )


def request_sha256(run: Run) -> str:
    """Returns a hash of the request, which is equal for two submissions of the same request."""
    requested = run.model_dump(mode="json", exclude=_NOT_REQUESTED)
    return hashlib.sha256(json.dumps(requested, sort_keys=True).encode()).hexdigest()


def attempt_values(attempt: Attempt) -> dict[str, Any]:
    """Returns an attempt's values in `attempts`, with the resources that are accounted in hours."""
    total = attempt.gang.total
    return {**attempt.model_dump(mode="json"), "cpus": total.get("CPU", 0.0), "gpus": total.get("GPU", 0.0)}
