"""Event causes in plain words: a cluster that does not respond, and an internal error of the service."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

EVENTS = sa.table("events", sa.column("cause", sa.Text))
RENAMED = {"cluster_silent": "cluster_unreachable", "fault": "internal_error"}


def upgrade() -> None:
    """Renames the causes of earlier events."""
    for former, cause in RENAMED.items():
        op.execute(sa.update(EVENTS).where(EVENTS.c.cause == former).values(cause=cause))
