"""The tables: runs, what was asked, attempts, events, the lease, tokens. It stands for the steps up to 0004.

They are those of `jobs.ledger.tables` for as long as no step follows: who writes the next one writes down here first
what they are now.
"""

from alembic import op

from jobs.ledger.tables import CONTROLLER, METADATA, lease

revision = "0004"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Makes all tables."""
    METADATA.create_all(op.get_bind(), checkfirst=False)
    op.bulk_insert(lease, [{"name": CONTROLLER, "holder": None, "epoch": 0, "beat": 0}])
