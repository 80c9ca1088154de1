"""The lease: the right to run the controller, held by one service at a time. Clocks of machines are never compared.

The holder increments a beat. A candidate measures by its own clock how long the beat is unchanged, and takes over
after the time to live, by an update that succeeds only if the beat is still the same. A takeover begins a new epoch.
Every write checks the epoch in its own transaction, so a holder that was suspended during a takeover writes nothing.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread
from typing import NamedTuple

from sqlalchemy import Connection, select, update

from jobs.errors import LeaseLostError, ServiceError
from jobs.ledger import tables
from jobs.ledger.database import Database


class LeaseRow(NamedTuple):
    """The lease's row. A takeover increments the epoch, a renewal the beat; the lease is free if `holder` is None."""

    holder: str | None
    epoch: int
    beat: int


class Lease:
    """One candidate's view of the lease.

    Two candidates of the same name have different epochs, so a restarted service does not mistake its predecessor's
    lease for its own.

    Attributes:
        epoch: Number of the takeover by which this candidate holds the lease; None if it does not, as far as it knows.
    """

    def __init__(
        self,
        database: Database,
        holder: str,
        *,
        ttl_s: float,
        clock: Callable[[], float] = time.monotonic,
        is_dead: Callable[[str], bool] = lambda holder: False,
    ):
        """Does not take the lease yet.

        A holder loses the lease if its beat has not changed for `ttl_s`, by a monotonic clock, or at once if its
        process `is_dead`.
        """
        self._is_dead = is_dead
        self.holder, self._database, self._ttl_s, self._clock = holder, database, ttl_s, clock
        self.epoch: int | None = None
        self._seen: LeaseRow | None = None
        self._seen_s = self._renewed_s = self._tried_s = 0.0

    @property
    def held(self) -> bool:
        """True if the lease is held and was renewed recently, so that no other process can have taken it yet."""
        return self.epoch is not None and self._clock() - self._renewed_s < self._ttl_s

    def try_hold(self) -> bool:
        """Renews the lease, or takes it if it is free or its holder no longer renews it; returns True if it is held.

        Call it several times within the time to live.

        Raises:
            ServiceError: the database does not respond, so it is not known whether the lease is held.
        """
        now_s = self._tried_s = self._clock()
        if self.epoch is not None and self._renew(self.epoch):
            self._renewed_s = now_s
            return True
        self.epoch = None
        with self._database.reading() as connection:
            row = _row(connection)
        if row != self._seen:
            self._seen, self._seen_s = row, now_s
        fresh = now_s - self._seen_s < self._ttl_s
        if row.holder is not None and fresh and not self._is_dead(row.holder):
            return False
        self._renewed_s = now_s
        return self._take(row)

    @contextmanager
    def kept(self, longest_s: float) -> Iterator[None]:
        """Renews the lease in a thread during the block, until `longest_s` after the last call of `try_hold`."""
        done = Event()

        def keep() -> None:
            while not done.wait(self._ttl_s / 4):
                with suppress(ServiceError):
                    self.keep(longest_s)

        thread = Thread(target=keep, name="lease", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def keep(self, longest_s: float) -> None:
        """Renews the lease if it is held; see `kept`. Safe during `try_hold`, since it changes no other epoch."""
        epoch, now_s = self.epoch, self._clock()
        if epoch is not None and now_s - self._tried_s < longest_s and self._renew(epoch):
            self._renewed_s = now_s

    def release(self) -> None:
        """Releases the lease for the next candidate; does nothing if it is not held."""
        if self.epoch is None:
            return
        epoch, self.epoch = self.epoch, None
        table = tables.lease
        with self._database.writing() as connection:
            connection.execute(
                update(table).where(table.c.holder == self.holder, table.c.epoch == epoch).values(holder=None)
            )

    def check(self, connection: Connection) -> None:
        """Raises LeaseLostError, within a writing transaction, if the lease is no longer held."""
        holder, epoch, _ = _row(connection)
        if self.epoch is None or (holder, epoch) != (self.holder, self.epoch):
            self.epoch = None
            now = f"{holder} holds it" if holder is not None else "it is free"
            raise LeaseLostError(f"{self.holder} does not hold the lease of the ledger: {now}")

    def _renew(self, epoch: int) -> bool:
        table = tables.lease
        mine = (table.c.holder == self.holder, table.c.epoch == epoch)
        with self._database.writing() as connection:
            return connection.execute(update(table).where(*mine).values(beat=table.c.beat + 1)).rowcount == 1

    def _take(self, row: LeaseRow) -> bool:
        c = tables.lease.c
        unchanged = (c.holder.is_not_distinct_from(row.holder), c.epoch == row.epoch, c.beat == row.beat)
        new = {"holder": self.holder, "epoch": row.epoch + 1, "beat": row.beat + 1}
        with self._database.writing() as connection:
            taken = connection.execute(update(tables.lease).where(*unchanged).values(new)).rowcount == 1
        if taken:
            self.epoch = row.epoch + 1
        return taken


def _row(connection: Connection) -> LeaseRow:
    c = tables.lease.c
    statement = select(c.holder, c.epoch, c.beat).where(c.name == tables.CONTROLLER)
    return LeaseRow(*connection.execute(statement).one())
