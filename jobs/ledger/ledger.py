"""The ledger and its parts; each method is one transaction."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import ColumnElement, Select, func, select, tuple_

from jobs.errors import NotFoundError
from jobs.ledger import records, tables
from jobs.ledger.database import Database
from jobs.ledger.lease import Lease
from jobs.ledger.scheduler_rows import SchedulerRows
from jobs.ledger.tokens import Tokens
from jobs.ledger.usage import UsageSums
from jobs.ledger.writer import RESUMED, UserRequests, Writer
from jobs.model import (
    ALL_RUNS,
    HOLDING,
    Attempt,
    Event,
    Page,
    Position,
    Run,
    RunFilter,
    cursor_after,
    position_of,
    read_cursor,
)
from trainers.config.submitted import config_text
from trainers.errors import ConfigError

# Largest numbers of events and attempts that SQLite and PostgreSQL accept.
_MOST_EVENTS = 2**63 - 1
_MOST_ATTEMPTS = 2**31 - 1
MAX_ROWS = 10_000
# A page ends with the run that exceeds this, so that large configs do not fill the reader's memory.
MAX_CONFIG_CHARACTERS = 4_000_000
ROWS_AT_ONCE = 20


class Ledger:
    """Runs, attempts, events, the lease and tokens. Threads may share it; processes open their own.

    Methods raise ServiceError while the database does not respond, and work again once it does; they raise
    NotFoundError for a run that does not exist.
    """

    def __init__(self, database: Database):
        self.url = database.url
        self._database = database
        self.requests = UserRequests(database)
        self.scheduler = SchedulerRows(database)
        self.usage = UsageSums(database)
        self.tokens = Tokens(database)

    @classmethod
    def open(cls, url: str) -> "Ledger":
        """Opens a ledger; creates the file and missing tables. Two processes may do this at once.

        Raises:
            ConfigError: the URL is not that of a SQLite file or a PostgreSQL database.
            ServiceError: the database cannot be opened.
        """
        return cls(Database.open(url))

    def close(self) -> None:
        self._database.close()

    def run(self, run_id: str) -> Run:
        """Reads a run; the error for an unknown run suggests similar names."""
        with self._database.reading() as connection:
            return records.find_run(connection, run_id)

    def runs(self, wanted: RunFilter = ALL_RUNS, *, limit: int = 50, cursor: str | None = None) -> Page:
        """Lists at most MAX_ROWS runs, newest first. Later submissions do not shift the pages.

        Raises:
            ConfigError: the limit is less than 1, or the cursor is not valid.
        """
        before, limit = read_cursor(cursor), _checked_limit(limit)
        found = _newest(wanted, limit + 1, before).subquery()
        statement = records.select_runs().join(found, found.c.id == tables.runs.c.id)
        statement = statement.order_by(tables.runs.c.submitted_s.desc(), tables.runs.c.id.desc())
        runs: list[Run] = []
        characters, more = 0, False
        statement = statement.execution_options(yield_per=ROWS_AT_ONCE)
        with self._database.reading() as connection, connection.execute(statement) as rows:
            for row in rows:
                if more := len(runs) == limit or characters > MAX_CONFIG_CHARACTERS:
                    break
                runs.append(records.record_of(Run, row))
                characters += len(config_text(runs[-1].config))
        return Page(runs=runs, next_cursor=cursor_after(position_of(runs[-1])) if more else None)

    def attempts(self, run_id: str) -> list[Attempt]:
        """Returns all attempts of a run, oldest first."""
        table = tables.attempts
        statement = records.select_of(Attempt, tables.attempts).where(table.c.run_id == run_id).order_by(table.c.number)
        with self._database.reading() as connection:
            found = [records.record_of(Attempt, row) for row in connection.execute(statement)]
            if not found:
                records.find_run(connection, run_id)
            return found

    def attempts_that_count(self, run_id: str) -> list[Attempt]:
        """Returns the attempts since a user last submitted or resumed the run, oldest first."""
        attempts, events = tables.attempts, tables.events
        resumed = (events.c.run_id == run_id, events.c.cause == RESUMED)
        last_before = select(func.coalesce(func.max(events.c.attempt), 0)).where(*resumed).scalar_subquery()
        counts = (attempts.c.run_id == run_id, attempts.c.number > last_before)
        statement = records.select_of(Attempt, tables.attempts).where(*counts).order_by(attempts.c.number)
        with self._database.reading() as connection:
            return [records.record_of(Attempt, row) for row in connection.execute(statement)]

    def attempt(self, run_id: str, number: int) -> Attempt:
        """Reads an attempt; raises NotFoundError if the run or the attempt does not exist."""
        table = tables.attempts
        wanted = (table.c.run_id == run_id, table.c.number == min(max(number, 0), _MOST_ATTEMPTS))
        with self._database.reading() as connection:
            row = connection.execute(records.select_of(Attempt, tables.attempts).where(*wanted)).one_or_none()
            if row is None:
                records.find_run(connection, run_id)
                numbers = select(table.c.number).where(table.c.run_id == run_id).order_by(table.c.number)
                has = ", ".join(map(str, connection.execute(numbers).scalars()))
                raise NotFoundError(f"run {run_id} has no attempt {number}: it has {has or 'none yet'}")
            return records.record_of(Attempt, row)

    def events(self, run_id: str | None, *, after: int = 0, limit: int = 1000) -> list[Event]:
        """Returns events of a run, or of all runs if None, with larger numbers than `after`, in order.

        A number becomes visible after all smaller numbers, so a reader that continues after the last misses none.

        Raises:
            ConfigError: the limit is less than 1.
        """
        table = tables.events
        statement = records.select_of(Event, table).where(table.c.number > min(max(after, 0), _MOST_EVENTS))
        statement = statement.order_by(table.c.number).limit(_checked_limit(limit))
        if run_id is not None:
            statement = statement.where(table.c.run_id == run_id)
        with self._database.reading() as connection:
            found = [records.record_of(Event, row) for row in connection.execute(statement)]
            if not found and run_id is not None:
                records.find_run(connection, run_id)
            return found

    def active_runs(self) -> list[Run]:
        table = tables.runs
        statement = records.select_runs().where(table.c.state.in_(HOLDING)).order_by(table.c.submitted_s, table.c.id)
        with self._database.reading() as connection:
            return [records.record_of(Run, row) for row in connection.execute(statement)]

    def lease(self, holder: str, *, ttl_s: float, is_dead: Callable[[str], bool] = lambda holder: False) -> Lease:
        return Lease(self._database, holder, ttl_s=ttl_s, is_dead=is_dead)

    @contextmanager
    def write(self, lease: Lease | None = None) -> Iterator[Writer]:
        """Opens a transaction, which is committed after the block, or rolled back if the block raises.

        The block must be short, since other writers wait.

        Raises:
            LeaseLostError: a lease is given and no longer held.
        """
        with self._database.writing() as connection:
            if lease is not None:
                lease.check(connection)
            yield Writer(connection)


def _checked_limit(limit: int) -> int:
    if limit < 1:
        raise ConfigError(f"limit is {limit}: ask for 1 to {MAX_ROWS} rows")
    return min(limit, MAX_ROWS)


def _newest(wanted: RunFilter, limit: int, before: Position | None) -> Select[Any]:
    c, tags = tables.runs.c, tables.run_tags.c
    exact = [(c.queue, wanted.queue), (c.user, wanted.user)]
    conditions: list[ColumnElement[bool]] = [column == value for column, value in exact if value is not None]
    if wanted.states:
        conditions.append(c.state.in_(wanted.states))
    if wanted.tag is not None:
        conditions.append(c.id.in_(select(tags.run_id).where(tags.tag == wanted.tag)))
    if before is not None:
        conditions.append(tuple_(c.submitted_s, c.id) < tuple_(*before))
    return select(c.id).where(*conditions).order_by(c.submitted_s.desc(), c.id.desc()).limit(limit)
