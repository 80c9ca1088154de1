"""Hours that attempts have held, by whom or what they were for."""

import math
from collections import defaultdict
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, or_, select

from jobs.answers import Usage, UsageBy
from jobs.ledger import schema

HOUR_S = 3600.0


def usage_of(
    connection: Connection, *, by: UsageBy, now_s: float, since_s: float | None = None, run_id: str | None = None
) -> list[Usage]:
    """Sums up what lies between `since_s` and `now_s`, in order of keys.

    An attempt that still runs counts up to `now_s`. One of a run with two tags counts for both. Sums are rounded once
    (math.fsum), so that they do not depend on the order of rows, and never shrink while time goes on.

    Args:
        connection: Where to read.
        by: What the keys are.
        now_s: End of the window.
        since_s: Its beginning. None: everything.
        run_id: Only this run's.
    """
    seconds: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    for key, created_s, ended_s, cpus, gpus in connection.execute(_select(by, now_s, since_s, run_id)):
        begin = created_s if since_s is None else max(created_s, since_s)
        end = now_s if ended_s is None else min(ended_s, now_s)
        duration_s = max(0.0, end - begin)
        seconds[key or ""].append((duration_s, duration_s * cpus, duration_s * gpus))
    return [_sum(key, seconds[key]) for key in (seconds if by == "attempt" else sorted(seconds))]


def _sum(key: str, attempts: list[tuple[float, float, float]]) -> Usage:
    wall, cpu, gpu = (math.fsum(column) / HOUR_S for column in zip(*attempts, strict=True))
    return Usage(key=key, attempts=len(attempts), wall_hours=wall, cpu_hours=cpu, gpu_hours=gpu)


def _select(by: UsageBy, now_s: float, since_s: float | None, run_id: str | None) -> Select[Any]:
    table, runs, tags = schema.attempts, schema.runs, schema.run_tags
    keys: dict[UsageBy, ColumnElement[str]] = {
        "run": table.c.run_id,
        "attempt": table.c.submission_id,
        "user": runs.c.user,
        "queue": runs.c.queue,
        "tag": tags.c.tag,
    }
    statement = select(keys[by], table.c.created_s, table.c.ended_s, table.c.cpus, table.c.gpus).select_from(table)
    if by in ("user", "queue"):
        statement = statement.join(runs, runs.c.id == table.c.run_id)
    elif by == "tag":
        statement = statement.outerjoin(tags, tags.c.run_id == table.c.run_id)
    else:
        statement = statement.order_by(table.c.run_id, table.c.number)
    statement = statement.where(table.c.created_s <= now_s)
    if since_s is not None:
        statement = statement.where(or_(table.c.ended_s.is_(None), table.c.ended_s >= since_s))
    if run_id is not None:
        statement = statement.where(table.c.run_id == run_id)
    return statement
