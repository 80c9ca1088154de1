"""What the scheduler reads of runs, without their configs: ten thousand rows take a fraction of a second."""

import json
from collections.abc import Collection
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, Select, Text, select, type_coerce

from jobs.ledger import tables
from jobs.ledger.database import Database
from jobs.lifecycle import HOLDING, WAITING, RunState
from jobs.model import Gang
from jobs.scheduler.decision import Holding, Waiting

# SQLite takes 32,766 values in a statement.
_IDS_AT_ONCE = 5_000


class SchedulerRows:
    """The rows of the scheduling policy; each method is one transaction."""

    def __init__(self, database: Database):
        self._database = database

    def waiting(self) -> list[Waiting]:
        """Runs that wait to be admitted, in no order."""
        runs = tables.runs
        depends_on = type_coerce(runs.c.depends_on, Text)
        statement = _select(runs.c.queued_s, depends_on, runs.c.not_before_s).where(runs.c.state.in_(WAITING))
        found = []
        with self._database.reading() as connection:
            for id_, queue, user, priority, address, gang, queued_s, depends, not_before_s in connection.execute(
                statement
            ):
                need, per_worker, num_workers, min_workers = _gang(gang)
                found.append(
                    Waiting(
                        id=id_,
                        queue=queue,
                        user=user,
                        priority=priority,
                        queued_s=queued_s,
                        address=address,
                        need=need,
                        per_worker=per_worker,
                        num_workers=num_workers,
                        depends_on=_names(depends),
                        not_before_s=not_before_s,
                        min_workers=min_workers,
                    )
                )
        return found

    def holding(self) -> list[Holding]:
        """Runs that hold their gang, in no order."""
        statement = _select(tables.runs.c.queued_s).where(tables.runs.c.state.in_(HOLDING))
        with self._database.reading() as connection:
            return [
                Holding(
                    id=id_,
                    queue=queue,
                    user=user,
                    priority=priority,
                    queued_s=queued_s,
                    address=address,
                    need=_gang(gang)[0],
                )
                for id_, queue, user, priority, address, gang, queued_s in connection.execute(statement)
            ]

    def states(self, ids: Collection[str]) -> dict[str, RunState]:
        """The states of these runs; without those that do not exist."""
        with self._database.reading() as connection:
            return states_of(connection, ids)


def states_of(connection: Connection, ids: Collection[str]) -> dict[str, RunState]:
    """See SchedulerRows.states; within a transaction."""
    runs, names, states = tables.runs, sorted(set(ids)), {}
    for first in range(0, len(names), _IDS_AT_ONCE):
        some = names[first : first + _IDS_AT_ONCE]
        for run_id, state in connection.execute(select(runs.c.id, runs.c.state).where(runs.c.id.in_(some))):
            states[run_id] = RunState(state)
    return states


def _select(*more: Any) -> Select[Any]:
    c = tables.runs.c
    return select(c.id, c.queue, c.user, c.priority, c.address, type_coerce(c.gang, Text), *more)


@lru_cache(maxsize=4096)
def _gang(text: str) -> tuple[dict[str, float], dict[str, float], int, int | None]:
    """Total, each worker's part, number of workers and fewest; runs of one recipe share the text, and so the work."""
    gang = Gang.model_validate_json(text)
    return gang.total, gang.resources_per_worker, gang.num_workers, gang.min_workers


@lru_cache(maxsize=4096)
def _names(text: str) -> tuple[str, ...]:
    return tuple(json.loads(text))
