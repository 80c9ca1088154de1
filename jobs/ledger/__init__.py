"""The ledger: runs, attempts and events, in a SQLite file or a PostgreSQL database; nothing in it is ever lost."""

from jobs.ledger.figures import WAIT_BOUNDS_S, Figures
from jobs.ledger.lease import Lease
from jobs.ledger.ledger import Ledger
from jobs.ledger.tokens import TokenInfo
from jobs.ledger.writer import Changed, Writer

__all__ = ["WAIT_BOUNDS_S", "Changed", "Figures", "Lease", "Ledger", "TokenInfo", "Writer"]
