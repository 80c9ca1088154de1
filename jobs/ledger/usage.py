"""Usage and causes of attempts, summed by the database.

Sums are of integers, in microseconds. Sums of floats depend on the order of rows, and Prometheus interprets a counter
that decreases, even by its last bit, as a reset.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Select, case, cast, func, literal, or_, select

from jobs.ledger import records, tables
from jobs.ledger.database import Database
from jobs.model import RunState, Usage, UsageBy

# Upper bounds of the histogram's buckets, in seconds: from at once to three days.
WAIT_BOUNDS_S = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 10_800.0, 21_600.0, 43_200.0, 86_400.0, 259_200.0)
_HOUR_S = 3600.0
_MICRO = 1_000_000


@dataclass
class WaitTimeHistogram:
    """Waiting times in a queue: number of runs ever admitted, sum of their waits, and number within each bound."""

    number: int = 0
    seconds: float = 0.0
    within: list[int] = field(default_factory=lambda: [0] * len(WAIT_BOUNDS_S))


@dataclass(frozen=True)
class AttemptTotals:
    """Sums over all attempts: hours by queue and user, ended attempts by queue and cause, waiting times by queue."""

    gpu_hours: Mapping[tuple[str, str], float]
    cpu_hours: Mapping[tuple[str, str], float]
    ended: Mapping[tuple[str, str], int]
    waits: Mapping[str, WaitTimeHistogram]


class UsageSums:
    """Sums of the ledger, each read in one transaction."""

    def __init__(self, database: Database):
        self._database = database

    def hours(
        self, by: UsageBy, *, now_s: float, since_s: float | None = None, run_id: str | None = None
    ) -> list[Usage]:
        """Returns hours of attempts between `since_s` (or the beginning, if None) and `now_s`, sorted by key.

        An attempt that still runs counts up to `now_s`. An attempt of a run with two tags counts for both.
        """
        with self._database.reading() as connection:
            if run_id is not None:
                records.find_run(connection, run_id)
            found = [
                Usage(
                    key=key or "", attempts=count, wall_hours=_hours(wall), cpu_hours=_hours(cpu), gpu_hours=_hours(gpu)
                )
                for key, count, wall, cpu, gpu in connection.execute(_select_hours(by, now_s, since_s, run_id))
            ]
        return found if by == "attempt" else sorted(found, key=lambda item: item.key)

    def totals(self, *, now_s: float) -> AttemptTotals:
        """Returns sums over all attempts; attempts that still run count up to `now_s`."""
        gpu: dict[tuple[str, str], int] = defaultdict(int)
        cpu: dict[tuple[str, str], int] = defaultdict(int)
        ended: dict[tuple[str, str], int] = defaultdict(int)
        waits: dict[str, WaitTimeHistogram] = defaultdict(WaitTimeHistogram)
        with self._database.reading() as connection:
            rows = connection.execute(_select_totals(now_s)).all()
        for queue, user, cause, number, gpu_us, cpu_us, admitted, waited_us, *within in rows:
            gpu[queue, user] += int(gpu_us)
            cpu[queue, user] += int(cpu_us)
            if cause is not None:
                ended[queue, cause] += number
            wait = waits[queue]
            wait.number += int(admitted)
            wait.seconds += int(waited_us) / _MICRO
            wait.within = [before + int(more) for before, more in zip(wait.within, within, strict=True)]
        gpu_hours, cpu_hours = ({key: _hours(value) for key, value in sums.items()} for sums in (gpu, cpu))
        return AttemptTotals(gpu_hours, cpu_hours, ended, waits)

    def runs(self) -> dict[tuple[str, RunState], int]:
        """Returns the number of runs by queue and state; pairs without runs are left out."""
        queue, state = tables.runs.c.queue, tables.runs.c.state
        with self._database.reading() as connection:
            found = connection.execute(select(queue, state, func.count()).group_by(queue, state))
            return {(name, RunState(value)): number for name, value, number in found}


def _select_hours(by: UsageBy, now_s: float, since_s: float | None, run_id: str | None) -> Select[Any]:
    attempts, runs, tags = tables.attempts.c, tables.runs.c, tables.run_tags.c
    keys: dict[UsageBy, ColumnElement[str]] = {
        "run": attempts.run_id,
        "attempt": attempts.submission_id,
        "user": runs.user,
        "queue": runs.queue,
        "tag": tags.tag,
    }
    held_s = _held_s(now_s, since_s)
    sums = [_total_us(held_s * size) for size in (1, attempts.cpus, attempts.gpus)]
    columns: list[Any] = [keys[by], func.count(), *sums]
    statement = select(*columns).select_from(tables.attempts).group_by(keys[by])
    if by in ("user", "queue"):
        statement = statement.join(tables.runs, runs.id == attempts.run_id)
    elif by == "tag":
        statement = statement.outerjoin(tables.run_tags, tags.run_id == attempts.run_id)
    elif by == "attempt":
        statement = statement.group_by(attempts.run_id, attempts.number).order_by(attempts.run_id, attempts.number)
    statement = statement.where(attempts.created_s <= now_s)
    if since_s is not None:
        statement = statement.where(or_(attempts.ended_s.is_(None), attempts.ended_s >= since_s))
    if run_id is not None:
        statement = statement.where(attempts.run_id == run_id)
    return statement


def _select_totals(now_s: float) -> Select[Any]:
    runs, attempts = tables.runs.c, tables.attempts.c
    duration_s = _seconds_between(attempts.created_s, func.coalesce(attempts.ended_s, now_s))
    first = attempts.number == 1
    wait_s = attempts.created_s - runs.submitted_s
    columns: list[Any] = [
        runs.queue,
        runs.user,
        attempts.cause,
        func.count(),
        _total_us(duration_s * attempts.gpus),
        _total_us(duration_s * attempts.cpus),
        func.sum(case((first, 1), else_=0)),
        _total_us(case((first & (wait_s > 0), wait_s), else_=0.0)),
        *(func.sum(case((first & (wait_s <= bound), 1), else_=0)) for bound in WAIT_BOUNDS_S),
    ]
    joined = select(*columns).join_from(tables.attempts, tables.runs, runs.id == attempts.run_id)
    return joined.group_by(runs.queue, runs.user, attempts.cause)


def _held_s(now_s: float, since_s: float | None) -> ColumnElement[float]:
    attempts = tables.attempts.c
    begin_s: ColumnElement[float] = attempts.created_s
    if since_s is not None:
        begin_s = case((attempts.created_s < since_s, literal(since_s)), else_=attempts.created_s)
    return _seconds_between(begin_s, case((attempts.ended_s < now_s, attempts.ended_s), else_=literal(now_s)))


def _seconds_between(begin_s: ColumnElement[float], end_s: ColumnElement[float]) -> ColumnElement[float]:
    return case((end_s > begin_s, end_s - begin_s), else_=0.0)


def _total_us(seconds: ColumnElement[float]) -> ColumnElement[int]:
    """Returns the sum over rows, in microseconds; each row is rounded once."""
    return func.sum(cast(func.round(seconds * _MICRO), BigInteger))


def _hours(microseconds: int) -> float:
    return int(microseconds) / _MICRO / _HOUR_S
