"""The ledger: each method is one transaction."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager

from sqlalchemy import func, select

from jobs.errors import NotFoundError
from jobs.ledger import pages, records, scheduler_rows, tables, tokens, usage, user_requests
from jobs.ledger.database import Database
from jobs.ledger.figures import Figures, figures_of
from jobs.ledger.lease import Lease
from jobs.ledger.pages import Filter
from jobs.ledger.tokens import TokenInfo
from jobs.ledger.transitions import HOLDING
from jobs.ledger.writer import Writer
from jobs.model import Attempt, Event, Page, Run, RunState, Usage, UsageBy
from jobs.scheduler.policy import Holding, Waiting

# What SQLite and PostgreSQL take for the number of an event, and for that of an attempt.
_MOST_EVENTS = 2**63 - 1
_MOST_ATTEMPTS = 2**31 - 1


class Ledger:
    """Runs, attempts, events, the lease and tokens. Threads may share it; processes open their own.

    Any method raises ServiceError while the database does not answer, and works again once it does.

    Attributes:
        url: The database, passwords masked.
    """

    def __init__(self, database: Database):
        self.url = database.url
        self._database = database

    @classmethod
    def open(cls, url: str) -> "Ledger":
        """Opens a ledger; makes the file, and its tables or what they lack. Two may do so at once.

        Args:
            url: `sqlite:////absolute/path/ledger.db`, or `postgresql://user:password@host:5432/database`.

        Raises:
            ConfigError: the URL is of neither kind.
            ServiceError: the database cannot be opened.
        """
        return cls(Database.open(url))

    def close(self) -> None:
        """Closes all connections."""
        self._database.close()

    # What users want.

    def add_run(self, run: Run, *, text: str, idempotency_key: str | None = None) -> Run:
        """Adds a run, QUEUED, with its first event.

        Args:
            run: What was asked for, its id included: whoever repeats a request must not make up a new name for it.
            text: One line for a person.
            idempotency_key: The same key of the same user with the same content gives the run that is there.

        Raises:
            ConflictError: the key was used for something else, the id is taken, or a run in `depends_on` has failed.
            NotFoundError: a run in `depends_on` is not there.
        """
        with self._database.writing() as connection:
            return user_requests.add_run(connection, run, text=text, idempotency_key=idempotency_key)

    def asked_before(self, run: Run, idempotency_key: str) -> Run | None:
        """The run that this user's key has made already. None: it is new.

        Raises:
            ConflictError: the key was used for something else.
        """
        with self._database.reading() as connection:
            return user_requests.run_of_key(connection, run, idempotency_key, records.asked_sha256(run))

    def request_stop(self, run_id: str, *, by: str, at_s: float) -> Run:
        """Asks for a run's end: a waiting one is STOPPED at once, one that holds its gang has `stop_requested_s` set.

        Asking again, or of a run that has ended, changes nothing.

        Raises:
            NotFoundError: there is no such run.
        """
        with self._database.writing() as connection:
            return user_requests.request_stop(connection, run_id, by=by, at_s=at_s)

    def reopen(self, run_id: str, *, by: str, at_s: float) -> Run:
        """Queues a FAILED or STOPPED run again, behind those that wait.

        Raises:
            NotFoundError: there is no such run.
            ConflictError: it is in another state.
        """
        with self._database.writing() as connection:
            return user_requests.reopen(connection, run_id, by=by, at_s=at_s)

    # What is there.

    def run(self, run_id: str) -> Run:
        """Reads a run.

        Raises:
            NotFoundError: there is none; says near names.
        """
        with self._database.reading() as connection:
            return records.find_run(connection, run_id)

    def runs(
        self,
        *,
        states: Collection[RunState] = (),
        queue: str | None = None,
        user: str | None = None,
        tag: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page:
        """Lists runs, newest submitted first.

        Args:
            states: Only those in one of these; none: in any.
            queue: Only those of this queue.
            user: Only those of this user.
            tag: Only those with this tag.
            limit: Rows of a page, pages.MOST_ROWS at most.
            cursor: `next_cursor` of the page before. Runs that come later do not shift the pages.

        Raises:
            ConfigError: the limit is less than 1, or the cursor none that a page gave.
        """
        with self._database.reading() as connection:
            return pages.page_of(connection, Filter(states, queue, user, tag), limit, cursor)

    def attempts(self, run_id: str) -> list[Attempt]:
        """All attempts of a run, oldest first.

        Raises:
            NotFoundError: there is no such run.
        """
        table = tables.attempts
        statement = records.select_attempts().where(table.c.run_id == run_id).order_by(table.c.number)
        with self._database.reading() as connection:
            found = [records.attempt_of(row) for row in connection.execute(statement)]
            if not found:
                records.find_run(connection, run_id)
            return found

    def forgiven(self, run_id: str) -> int:
        """Number of the newest attempt that the user forgave by resuming the run; 0 where none was."""
        table = tables.events
        resumed = (table.c.run_id == run_id, table.c.cause == user_requests.RESUMED)
        with self._database.reading() as connection:
            return connection.execute(select(func.max(table.c.attempt)).where(*resumed)).scalar_one() or 0

    def attempt(self, run_id: str, number: int) -> Attempt:
        """Reads an attempt.

        Raises:
            NotFoundError: there is no such run, or it has no such attempt.
        """
        table = tables.attempts
        wanted = (table.c.run_id == run_id, table.c.number == min(max(number, 0), _MOST_ATTEMPTS))
        with self._database.reading() as connection:
            row = connection.execute(records.select_attempts().where(*wanted)).one_or_none()
            if row is None:
                records.find_run(connection, run_id)
                has = connection.execute(select(table.c.number).where(table.c.run_id == run_id)).scalars()
                raise NotFoundError(f"run {run_id} has no attempt {number}: {_numbers(sorted(has))}")
            return records.attempt_of(row)

    def events(self, run_id: str | None, *, after: int = 0, limit: int = 1000) -> list[Event]:
        """Events in the order of their numbers.

        A number becomes visible after all smaller ones, so going on after the last one misses none.

        Args:
            run_id: Whose. None: everybody's.
            after: Only larger numbers.
            limit: How many at most.

        Raises:
            NotFoundError: there is no such run.
            ConfigError: the limit is less than 1.
        """
        table = tables.events
        statement = records.select_events().where(table.c.number > min(max(after, 0), _MOST_EVENTS))
        statement = statement.order_by(table.c.number).limit(pages.checked_limit(limit))
        if run_id is not None:
            statement = statement.where(table.c.run_id == run_id)
        with self._database.reading() as connection:
            found = [records.event_of(row) for row in connection.execute(statement)]
            if not found and run_id is not None:
                records.find_run(connection, run_id)
            return found

    # What policies and the controller need.

    def waiting(self) -> list[Waiting]:
        """Rows of runs that wait to be admitted, for the queue policy."""
        with self._database.reading() as connection:
            return scheduler_rows.waiting(connection)

    def holding(self) -> list[Holding]:
        """Rows of runs that hold their gang, for the queue policy."""
        with self._database.reading() as connection:
            return scheduler_rows.holding(connection)

    def active_runs(self) -> list[Run]:
        """The runs that hold their gang, oldest submitted first."""
        table = tables.runs
        statement = records.select_runs().where(table.c.state.in_(HOLDING)).order_by(table.c.submitted_s, table.c.id)
        with self._database.reading() as connection:
            return [records.run_of(row) for row in connection.execute(statement)]

    def dependencies(self, ids: Collection[str]) -> dict[str, RunState]:
        """The states of these runs; without those that are not there."""
        with self._database.reading() as connection:
            return scheduler_rows.states_of(connection, ids)

    def counts(self) -> dict[tuple[str, RunState], int]:
        """How many runs there are by queue and state."""
        with self._database.reading() as connection:
            return scheduler_rows.counts(connection)

    def figures(self, *, now_s: float) -> Figures:
        """Sums over all attempts; those that live count up to now."""
        with self._database.reading() as connection:
            return figures_of(connection, now_s=now_s)

    def usage(
        self, *, by: UsageBy, now_s: float, since_s: float | None = None, run_id: str | None = None
    ) -> list[Usage]:
        """Hours that attempts have held between `since_s` (None: ever) and `now_s`, in order of keys.

        Raises:
            NotFoundError: there is no run `run_id`.
        """
        with self._database.reading() as connection:
            if run_id is not None:
                records.find_run(connection, run_id)
            return usage.usage_of(connection, by=by, now_s=now_s, since_s=since_s, run_id=run_id)

    # Writing as the controller.

    def lease(self, holder: str, *, ttl_s: float, is_gone: Callable[[str], bool] = lambda holder: False) -> Lease:
        """A candidate for the right to drive the runs; see `Lease`."""
        return Lease(self._database, holder, ttl_s=ttl_s, is_gone=is_gone)

    @contextmanager
    def write(self, lease: Lease | None = None) -> Iterator[Writer]:
        """One transaction: all of the block is written, or nothing where it raises. Keep it short; others wait.

        Raises:
            LeaseLostError: a lease is given and not held any more.
        """
        with self._database.writing() as connection:
            if lease is not None:
                lease.check(connection)
            yield Writer(connection)

    # Tokens.

    def add_token(self, name: str, at_s: float) -> str:
        """Makes a token for a user, as text that is nowhere kept.

        Raises:
            ConfigError: the name is none.
            ConflictError: the name has one.
        """
        with self._database.writing() as connection:
            return tokens.add(connection, name, at_s)

    def user_of(self, token: str) -> str | None:
        """Whose token this is. None: nobody's."""
        with self._database.reading() as connection:
            return tokens.user_of(connection, token)

    def tokens(self) -> list[TokenInfo]:
        """All tokens, by name."""
        with self._database.reading() as connection:
            return tokens.infos(connection)

    def revoke(self, name: str) -> None:
        """Makes a token worthless.

        Raises:
            NotFoundError: no token has this name.
        """
        with self._database.writing() as connection:
            tokens.revoke(connection, name)


def _numbers(attempts: Sequence[int]) -> str:
    return f"it has {', '.join(map(str, attempts))}" if attempts else "it has none yet"
