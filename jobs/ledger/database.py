"""Opens the database and provides transactions: SQLite in one file, or PostgreSQL.

Both admit one writer at a time: SQLite by BEGIN IMMEDIATE, PostgreSQL by a lock on the lease's row, which is acquired
first. So a writer sees all that earlier writers wrote, writers never deadlock, and events are numbered in the order in
which their transactions become visible. A reader that has read up to a number has therefore missed no smaller number,
which PostgreSQL's sequences alone do not guarantee.
"""

import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import URL, Connection, Engine, create_engine, event, func, insert, make_url, select
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from jobs.errors import LedgerError, ServiceError
from jobs.ledger import tables
from trainers.config.storage_location import in_home
from trainers.distributed.machine import make_private_folder
from trainers.errors import ConfigError

# Longest wait of a writer for the previous writer. Transactions take milliseconds; a database checkpoint on a slow
# disk takes seconds.
LOCK_WAIT_S = 30.0
# PostgreSQL ends a writer that is idle for this long within a transaction (paused, or without a network), so that
# another can take over. SQLite cannot, but its writers are all on one machine.
WRITER_IDLE_TIMEOUT_S = 10.0
CONNECT_TIMEOUT_S = 10
# Longest wait for a response that the network has lost.
UNACKNOWLEDGED_MS = 30_000

_WRITES = "rayscribe_writes"
_MIGRATION_LOCK = 0x7261797363726962  # "rayscrib"; number of a PostgreSQL advisory lock, the same for all services
_RETRY_S = 0.05
_HINTS = {
    "sqlite": "check that the file and its folder can be written, that the disk is local and not full, and that no "
    "other program locks the file",
    "postgresql": "check that the server is up, that the database exists, and that this user may connect to it and "
    "make tables in it",
}

FORMS = "sqlite:////absolute/path/ledger.db or postgresql://user:password@host:5432/database"
POSTGRES_DRIVER = "postgresql+psycopg"
_POSTGRES_NAMES = {"postgres", "postgresql", POSTGRES_DRIVER}
_SECRET_PARAMETERS = {"password", "sslpassword"}
_MASK = "***"
_MIGRATIONS = str(Path(__file__).with_name("migrations"))
# `alembic.op`, which the migrations use, is global to the process.
_one_at_a_time = threading.Lock()


def parse(text: str) -> URL:
    """Parses the URL of a SQLite file (absolute path) or a PostgreSQL database; raises ConfigError for others."""
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        # A URL that cannot be parsed cannot be masked reliably either.
        raise ConfigError(f"the ledger's database is not a URL; write {FORMS}") from None
    if url.drivername in _POSTGRES_NAMES:
        return url.set(drivername=POSTGRES_DRIVER)
    if url.drivername != "sqlite":
        raise ConfigError(f"the ledger's database is {masked(url)}; write {FORMS}")
    if url.host or not url.database or url.database.startswith((":memory:", "file:")):
        raise ConfigError(f"the ledger's database is {masked(url)}, not a file's path; write {FORMS}")
    path = in_home(url.database)
    if not path.is_absolute():
        # A relative path would be another ledger in each working directory.
        raise ConfigError(
            f"the ledger's database is {masked(url)}, a relative path; "
            f"an absolute one has four slashes: sqlite:///{path.absolute()}"
        )
    return url.set(database=str(path))


def masked(url: URL) -> str:
    """Returns the URL for messages and logs, without secrets."""
    if url.drivername == "sqlite" and not url.host:
        return f"sqlite:///{url.database or ''}"
    secret = {name: _MASK for name in url.query if name in _SECRET_PARAMETERS}
    shown = url.update_query_dict(secret).render_as_string(hide_password=True)
    return shown.replace(POSTGRES_DRIVER, "postgresql", 1).replace("%2A%2A%2A", _MASK)


class Database:
    """A database that provides transactions. Threads may share it.

    Attributes:
        url: URL with masked passwords.
    """

    def __init__(self, engine: Engine, url: str):
        self.url = url
        self._engine = engine
        self._writing_engine = engine.execution_options(**{_WRITES: True})
        self._thread = threading.local()

    @classmethod
    def open(cls, text: str) -> "Database":
        """Opens a database, and creates or migrates its tables; raises like `parse`, and LedgerError if that fails."""
        url = parse(text)
        sqlite = url.get_backend_name() == "sqlite"
        database = cls(_sqlite(url) if sqlite else _postgres(url), masked(url))
        try:
            if sqlite:
                _prepare_file(Path(str(url.database)))
            database._migrate()
        except (OSError, sqlite3.Error) as error:
            database.close()
            raise database._error_of(error) from error
        except BaseException:
            database.close()
            raise
        return database

    def close(self) -> None:
        self._engine.dispose()

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Opens a transaction that only reads; it does not wait for writers.

        Raises:
            LedgerError: the database does not respond.
        """
        with self._ledger_errors(), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Opens a transaction that writes; commits it after the block, or rolls it back if the block raises.

        Raises:
            LedgerError: the database does not respond. If the response to COMMIT was lost, the transaction may
                have been committed, so read again before acting.
        """
        # The inner transaction would wait for the outer one forever.
        assert not getattr(self._thread, "writes", False), "a transaction of the ledger inside another"
        self._thread.writes = True
        try:
            with self._ledger_errors(), self._writing_engine.begin() as connection:
                if connection.dialect.name == "postgresql":
                    _set_timeouts(connection)
                    connection.execute(select(tables.lease.c.name).with_for_update())
                yield connection
        finally:
            self._thread.writes = False

    def _migrate(self) -> None:
        with self.reading() as connection:
            if self._is_newest(connection):
                return
        with self._ledger_errors(), self._writing_engine.begin() as connection:
            if connection.dialect.name == "postgresql":
                # The lease's row, which writers lock, does not exist yet.
                connection.execute(select(func.pg_advisory_xact_lock(_MIGRATION_LOCK)))
            _upgrade(connection)

    def _is_newest(self, connection: Connection) -> bool:
        """Returns True if there is nothing to migrate; raises ServiceError if the tables have an unknown version."""
        steps = ScriptDirectory(_MIGRATIONS, version_locations=[_MIGRATIONS])
        at = MigrationContext.configure(connection).get_current_revision()
        if at is not None and at not in {step.revision for step in steps.walk_revisions()}:
            raise ServiceError(
                f"the ledger {self.url} belongs to another version of Rayscribe (its tables have version {at}, this "
                f"Rayscribe supports up to {steps.get_current_head()}): install that version, or choose another ledger "
                "by RAYSCRIBE_HOME or --database"
            )
        return at == steps.get_current_head()

    @contextmanager
    def _ledger_errors(self) -> Iterator[None]:
        """Converts errors of the database driver to LedgerError, except violated constraints."""
        try:
            yield
        except IntegrityError:
            raise
        except DBAPIError as error:
            raise self._error_of(error.orig or error) from error
        except PoolTimeoutError as error:
            raise self._error_of(error) from error

    def _error_of(self, error: BaseException) -> LedgerError:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        return LedgerError(f"the ledger {self.url} does not respond: {reason}; {_HINTS[self._engine.dialect.name]}")


def _sqlite(url: URL) -> Engine:
    # The driver must not begin transactions by itself, since it would begin none for reading, and deferred ones for
    # writing.
    engine = create_engine(url, hide_parameters=True, connect_args={"isolation_level": None, "timeout": LOCK_WAIT_S})

    @event.listens_for(engine, "connect")
    def configure(connection: sqlite3.Connection, record: object) -> None:
        connection.execute("PRAGMA foreign_keys=ON")
        # Commits survive a power loss, which WAL's default NORMAL does not guarantee.
        connection.execute("PRAGMA synchronous=FULL")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        writes = connection.get_execution_options().get(_WRITES, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _postgres(url: URL) -> Engine:
    wanted: dict[str, Any] = {
        "application_name": "rayscribe",
        "connect_timeout": CONNECT_TIMEOUT_S,
        "tcp_user_timeout": UNACKNOWLEDGED_MS,
    }
    arguments = {name: value for name, value in wanted.items() if name not in url.query}
    return create_engine(url, hide_parameters=True, pool_pre_ping=True, connect_args=arguments)


def _set_timeouts(connection: Connection) -> None:
    """Sets timeouts for this transaction only, so that a pooled connection does not keep them."""
    connection.execute(
        select(
            func.set_config("lock_timeout", f"{LOCK_WAIT_S * 1000:.0f}ms", True),
            func.set_config("idle_in_transaction_session_timeout", f"{WRITER_IDLE_TIMEOUT_S * 1000:.0f}ms", True),
        )
    )


def _prepare_file(path: Path) -> None:
    make_private_folder(path.parent)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    mode, end = None, time.monotonic() + LOCK_WAIT_S
    with closing(sqlite3.connect(path, timeout=LOCK_WAIT_S, isolation_level=None)) as connection:
        while mode is None:
            try:
                (mode,) = connection.execute("PRAGMA journal_mode=WAL").fetchone()
            except sqlite3.OperationalError as error:
                # SQLite's own timeout does not apply here if two processes open an empty file at once.
                if "locked" not in str(error) or time.monotonic() > end:
                    raise
                time.sleep(_RETRY_S)
    if mode != "wal":
        raise OSError(f"SQLite cannot keep a write-ahead log there (journal mode {mode})")


def _upgrade(connection: Connection) -> None:
    """Creates the tables, or runs all missing migrations, in the open transaction of `connection`."""
    steps = ScriptDirectory(_MIGRATIONS, version_locations=[_MIGRATIONS])
    context = MigrationContext.configure(connection)
    if context.get_current_revision() is None:
        tables.METADATA.create_all(connection, checkfirst=False)
        connection.execute(insert(tables.lease).values(name=tables.CONTROLLER, epoch=0, beat=0))
        context.stamp(steps, "head")
        return
    # As in Alembic's documentation of EnvironmentContext.
    missing = EnvironmentContext(Config(), steps, fn=lambda revision, _: steps._upgrade_revs("head", revision))
    with _one_at_a_time, missing:
        missing.configure(connection=connection, target_metadata=tables.METADATA)
        missing.run_migrations()
