"""Hours that attempts have held, by whom or what they were for."""

from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, case, func, literal, or_, select

from jobs.ledger import tables
from jobs.ledger.sums import hours, seconds_between, total_us
from jobs.model import Usage, UsageBy


def usage_of(
    connection: Connection, *, by: UsageBy, now_s: float, since_s: float | None = None, run_id: str | None = None
) -> list[Usage]:
    """Sums up what lies between `since_s` and `now_s`, in order of keys.

    An attempt that still runs counts up to `now_s`. One of a run with two tags counts for both.

    Args:
        connection: Where to read.
        by: What the keys are.
        now_s: End of the window.
        since_s: Its beginning. None: everything.
        run_id: Only this run's.
    """
    found = [
        Usage(key=key or "", attempts=number, wall_hours=hours(wall), cpu_hours=hours(cpu), gpu_hours=hours(gpu))
        for key, number, wall, cpu, gpu in connection.execute(_select(by, now_s, since_s, run_id))
    ]
    return found if by == "attempt" else sorted(found, key=lambda item: item.key)


def _select(by: UsageBy, now_s: float, since_s: float | None, run_id: str | None) -> Select[Any]:
    attempts, runs, tags = tables.attempts.c, tables.runs.c, tables.run_tags.c
    keys: dict[UsageBy, ColumnElement[str]] = {
        "run": attempts.run_id,
        "attempt": attempts.submission_id,
        "user": runs.user,
        "queue": runs.queue,
        "tag": tags.tag,
    }
    held_s = _held_s(now_s, since_s)
    sums = [total_us(held_s * size) for size in (1, attempts.cpus, attempts.gpus)]
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


def _held_s(now_s: float, since_s: float | None) -> ColumnElement[float]:
    """How long an attempt has held its gang within the window."""
    attempts = tables.attempts.c
    begin_s: ColumnElement[float] = attempts.created_s
    if since_s is not None:
        begin_s = case((attempts.created_s < since_s, literal(since_s)), else_=attempts.created_s)
    end_s = case((attempts.ended_s < now_s, attempts.ended_s), else_=literal(now_s))
    return seconds_between(begin_s, end_s)
