"""Alembic runs this to upgrade a database to the newest migration; jobs.ledger.database passes the open transaction."""

from alembic import context
from sqlalchemy import Connection

from jobs.ledger.tables import METADATA

connection: Connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=METADATA)
context.run_migrations()
