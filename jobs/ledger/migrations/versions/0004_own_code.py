"""The code that a run starts with, where its package has none: frozen when it is submitted, as the package is."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Adds the column, which earlier runs leave empty."""
    op.add_column("requests", sa.Column("code", TEXT))
