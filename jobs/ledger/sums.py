"""Durations of attempts, added up by the database so that the sum does not depend on the order of rows."""

from sqlalchemy import BigInteger, ColumnElement, case, cast, func

HOUR_S = 3600.0
# Millionths are added as whole numbers: sums of fractions depend on the order of rows, and a counter that shrinks by
# the last bit is taken for one that began anew.
MICRO = 1_000_000


def seconds_between(begin_s: ColumnElement[float], end_s: ColumnElement[float]) -> ColumnElement[float]:
    """A duration, none where the end comes first."""
    return case((end_s > begin_s, end_s - begin_s), else_=0.0)


def total_us(seconds: ColumnElement[float]) -> ColumnElement[int]:
    """Sum over rows, in microseconds; each row is rounded once."""
    return func.sum(cast(func.round(seconds * MICRO), BigInteger))


def hours(microseconds: int) -> float:
    """From a sum in microseconds."""
    return int(microseconds) / MICRO / HOUR_S
