"""The right to drive the runs, which one service has at a time. No clocks of two machines are ever compared.

The holder counts up a beat. Who wants the lease watches that count by a clock of its own, and takes over when it has
stood still for the time to live, by a change that succeeds only if it still stands still. Taking over begins a new
epoch. A holder that slept through this finds another epoch at its next write, in the same transaction, and so writes
nothing.
"""

import time
from collections.abc import Callable

from sqlalchemy import Connection, CursorResult, select, update

from jobs.errors import LeaseLostError
from jobs.ledger import tables
from jobs.ledger.database import Database

Sight = tuple[str | None, int, int]


class Lease:
    """One candidate's view of the lease.

    Two of one name are told apart by their epochs, so a restarted service does not take itself for the one before.
    """

    def __init__(
        self,
        database: Database,
        holder: str,
        *,
        ttl_s: float,
        clock: Callable[[], float] = time.monotonic,
        is_gone: Callable[[str], bool] = lambda holder: False,
    ):
        """Takes nothing yet.

        Args:
            database: Where the lease is.
            holder: Name to be shown to others.
            ttl_s: A holder whose beat stands still for this long has lost it.
            clock: Seconds since anything; must not jump.
            is_gone: Whether a holder is known to live no more, and so need not be waited for.
        """
        self._is_gone = is_gone
        self.holder, self._database, self._ttl_s, self._clock = holder, database, ttl_s, clock
        self._epoch: int | None = None
        self._seen: Sight | None = None
        self._seen_s = self._renewed_s = 0.0

    @property
    def epoch(self) -> int | None:
        """Grows each time that somebody takes over. None: not held, as far as is known here."""
        return self._epoch

    @property
    def held(self) -> bool:
        """Whether it is held and was renewed lately, so that nobody else can have taken it yet."""
        return self._epoch is not None and self._clock() - self._renewed_s < self._ttl_s

    def try_hold(self) -> bool:
        """Renews the lease, or takes it where it is free or its holder has fallen silent.

        Call it several times within the time to live.

        Raises:
            ServiceError: the database does not answer; whether the lease is held is then not known.
        """
        now_s = self._clock()
        if self._epoch is not None and self._renew(self._epoch):
            self._renewed_s = now_s
            return True
        self._epoch = None
        job_info = self._look()
        if job_info != self._seen:
            self._seen, self._seen_s = job_info, now_s
        waits = now_s - self._seen_s < self._ttl_s
        if job_info[0] is not None and waits and not self._is_gone(job_info[0]):
            return False
        self._renewed_s = now_s
        return self._take(job_info)

    def release(self) -> None:
        """Leaves the lease free for the next at once; nothing happens where it is not held."""
        if self._epoch is None:
            return
        epoch, self._epoch = self._epoch, None
        table = tables.lease
        with self._database.writing() as connection:
            connection.execute(
                update(table).where(table.c.holder == self.holder, table.c.epoch == epoch).values(holder=None)
            )

    def check(self, connection: Connection) -> None:
        """Makes sure, within a writing transaction, that the lease is still held.

        Raises:
            LeaseLostError: it is not.
        """
        holder, epoch, _ = _row(connection)
        if self._epoch is None or (holder, epoch) != (self.holder, self._epoch):
            self._epoch = None
            now = f"{holder} holds it" if holder is not None else "nobody holds it"
            raise LeaseLostError(f"{self.holder} does not hold the lease of the ledger: {now}")

    def _renew(self, epoch: int) -> bool:
        table = tables.lease
        mine = (table.c.holder == self.holder, table.c.epoch == epoch)
        with self._database.writing() as connection:
            return _one(connection.execute(update(table).where(*mine).values(beat=table.c.beat + 1)))

    def _look(self) -> Sight:
        with self._database.reading() as connection:
            return _row(connection)

    def _take(self, job_info: Sight) -> bool:
        table, (holder, epoch, beat) = tables.lease, job_info
        unchanged = (table.c.holder.is_not_distinct_from(holder), table.c.epoch == epoch, table.c.beat == beat)
        new = {"holder": self.holder, "epoch": epoch + 1, "beat": beat + 1}
        with self._database.writing() as connection:
            taken = _one(connection.execute(update(table).where(*unchanged).values(new)))
        if taken:
            self._epoch = epoch + 1
        return taken


def _row(connection: Connection) -> Sight:
    table = tables.lease
    row = connection.execute(select(table).where(table.c.name == tables.CONTROLLER)).one()
    return row.holder, row.epoch, row.beat


def _one(result: CursorResult[tuple[()]]) -> bool:
    return result.rowcount == 1
