"""What the ledger's attempts come to, added up by the database in one pass."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Select, case, func, select

from jobs.ledger import tables
from jobs.ledger.sums import MICRO, hours, seconds_between, total_us

# Upper bounds of the waiting time's buckets, in seconds: from at once to three days.
WAIT_BOUNDS_S = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 10_800.0, 21_600.0, 43_200.0, 86_400.0, 259_200.0)


@dataclass
class Waits:
    """How long runs of a queue waited for their first attempt.

    Attributes:
        number: How many were ever admitted.
        seconds: Sum of their waiting times.
        within: How many waited no longer than each of WAIT_BOUNDS_S.
    """

    number: int = 0
    seconds: float = 0.0
    within: list[int] = field(default_factory=lambda: [0] * len(WAIT_BOUNDS_S))


@dataclass(frozen=True)
class Figures:
    """Sums over all attempts.

    Attributes:
        gpu_hours: By queue and user.
        cpu_hours: By queue and user.
        ended: Attempts by queue and cause.
        waits: By queue.
    """

    gpu_hours: Mapping[tuple[str, str], float]
    cpu_hours: Mapping[tuple[str, str], float]
    ended: Mapping[tuple[str, str], int]
    waits: Mapping[str, Waits]


def figures_of(connection: Connection, *, now_s: float) -> Figures:
    """Adds up; attempts that live count up to now.

    Args:
        connection: Where to read.
        now_s: The time.
    """
    gpu: dict[tuple[str, str], int] = defaultdict(int)
    cpu: dict[tuple[str, str], int] = defaultdict(int)
    ended: dict[tuple[str, str], int] = defaultdict(int)
    waits: dict[str, Waits] = defaultdict(Waits)
    for row in connection.execute(_select(now_s)):
        queue, user, cause, number, gpu_us, cpu_us, admitted, waited_us, *within = row
        gpu[queue, user] += int(gpu_us)
        cpu[queue, user] += int(cpu_us)
        if cause is not None:
            ended[queue, cause] += number
        wait = waits[queue]
        wait.number += int(admitted)
        wait.seconds += int(waited_us) / MICRO
        wait.within = [before + int(more) for before, more in zip(wait.within, within, strict=True)]
    return Figures(_hours(gpu), _hours(cpu), ended, waits)


def _select(now_s: float) -> Select[Any]:
    runs, attempts = tables.runs.c, tables.attempts.c
    end_s = func.coalesce(attempts.ended_s, now_s)
    duration_s = seconds_between(attempts.created_s, end_s)
    first = attempts.number == 1
    wait_s = attempts.created_s - runs.submitted_s
    columns: list[Any] = [
        runs.queue,
        runs.user,
        attempts.cause,
        func.count(),
        total_us(duration_s * attempts.gpus),
        total_us(duration_s * attempts.cpus),
        func.sum(case((first, 1), else_=0)),
        total_us(case((first & (wait_s > 0), wait_s), else_=0.0)),
        *(func.sum(case((first & (wait_s <= bound), 1), else_=0)) for bound in WAIT_BOUNDS_S),
    ]
    joined = select(*columns).join_from(tables.attempts, tables.runs, runs.id == attempts.run_id)
    return joined.group_by(runs.queue, runs.user, attempts.cause)


def _hours(microseconds: Mapping[tuple[str, str], int]) -> dict[tuple[str, str], float]:
    return {key: hours(value) for key, value in microseconds.items()}
