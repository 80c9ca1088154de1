"""The ledger: runs, attempts and events, in SQLite or PostgreSQL; committed changes are never lost."""

from jobs.ledger.lease import Lease
from jobs.ledger.ledger import Ledger
from jobs.ledger.tokens import TokenInfo
from jobs.ledger.usage import WAIT_BOUNDS_S, AttemptTotals, WaitTimeHistogram
from jobs.ledger.writer import RunChangedError, Writer

__all__ = [
    "WAIT_BOUNDS_S",
    "AttemptTotals",
    "Lease",
    "Ledger",
    "RunChangedError",
    "TokenInfo",
    "WaitTimeHistogram",
    "Writer",
]
