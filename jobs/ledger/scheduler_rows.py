"""Rows of runs for the scheduler, without their configs, so that reading ten thousand takes less than a second."""

import json
from collections.abc import Collection
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, Select, Text, select, type_coerce

from jobs.ledger import tables
from jobs.ledger.database import Database
from jobs.model import HOLDING, WAITING, Gang, RunState
from jobs.scheduler.decision import Holding, Waiting

# SQLite accepts 32,766 values in a statement.
_IDS_AT_ONCE = 5_000


class SchedulerRows:
    """The rows that the scheduling policy reads; each method is one transaction."""

    def __init__(self, database: Database):
        self._database = database

    def waiting(self) -> list[Waiting]:
        c = tables.runs.c
        statement = _select(type_coerce(c.depends_on, Text), c.not_before_s).where(c.state.in_(WAITING))
        found = []
        with self._database.reading() as connection:
            rows = connection.execute(statement)
            for id_, queue, user, priority, queued_s, address, gang, names, not_before_s in rows:
                need, per_worker, workers, least = _gang(gang)
                run = (id_, queue, user, priority, queued_s, address, need)
                found.append(Waiting(*run, per_worker, workers, _names(names), not_before_s, least))
        return found

    def holding(self) -> list[Holding]:
        statement = _select().where(tables.runs.c.state.in_(HOLDING))
        with self._database.reading() as connection:
            return [
                Holding(id_, queue, user, priority, queued_s, address, _gang(gang)[0])
                for id_, queue, user, priority, queued_s, address, gang in connection.execute(statement)
            ]

    def states(self, ids: Collection[str]) -> dict[str, RunState]:
        with self._database.reading() as connection:
            return states_of(connection, ids)


def states_of(connection: Connection, ids: Collection[str]) -> dict[str, RunState]:
    """Returns the states of these runs; runs that do not exist are left out."""
    runs, names, states = tables.runs, sorted(set(ids)), {}
    for first in range(0, len(names), _IDS_AT_ONCE):
        some = names[first : first + _IDS_AT_ONCE]
        for run_id, state in connection.execute(select(runs.c.id, runs.c.state).where(runs.c.id.in_(some))):
            states[run_id] = RunState(state)
    return states


def _select(*more: Any) -> Select[Any]:
    """Selects the fields of Holding in their order, with the gang as text, and then the columns in `more`."""
    c = tables.runs.c
    return select(c.id, c.queue, c.user, c.priority, c.queued_s, c.address, type_coerce(c.gang, Text), *more)


@lru_cache(maxsize=4096)
def _gang(text: str) -> tuple[dict[str, float], dict[str, float], int, int | None]:
    """Returns total, resources per worker, number of workers and minimum; cached, since runs share the text."""
    gang = Gang.model_validate_json(text)
    return gang.total, gang.resources_per_worker, gang.num_workers, gang.min_workers


@lru_cache(maxsize=4096)
def _names(text: str) -> tuple[str, ...]:
    return tuple(json.loads(text))
