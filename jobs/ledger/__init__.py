"""The ledger: runs, attempts and events, in a SQLite file or a PostgreSQL database; nothing in it is ever lost."""

from jobs.ledger.lease import Lease
from jobs.ledger.ledger import Ledger
from jobs.ledger.tokens import TokenInfo
from jobs.ledger.writer import Changed, Writer

__all__ = ["Changed", "Lease", "Ledger", "TokenInfo", "Writer"]
