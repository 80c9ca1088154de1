"""Brings a database to the newest step of `migrations/`, from any older one or from nothing."""

import threading
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from jobs.errors import ServiceError

_FOLDER = Path(__file__).with_name("migrations")
# `alembic.context`, which the steps speak to, is one for the process.
_one_at_a_time = threading.Lock()


def is_newest(connection: Connection) -> bool:
    """Whether nothing is to be done; ServiceError where a later version has written the database."""
    steps = ScriptDirectory.from_config(_config())
    at = MigrationContext.configure(connection).get_current_revision()
    if at is not None and at not in {step.revision for step in steps.walk_revisions()}:
        raise ServiceError(
            f"a newer Rayscribe has written this ledger (its tables are at step {at}, this version knows steps "
            f"up to {steps.get_current_head()}): install that version"
        )
    return at == steps.get_current_head()


def upgrade(connection: Connection, *, to: str = "head") -> None:
    """Takes all missing steps up to one in the transaction that `connection` has open: all of them happen, or none."""
    config = _config()
    config.attributes["connection"] = connection
    with _one_at_a_time:
        command.upgrade(config, to)


def _config() -> Config:
    config = Config()
    # The value is a template of configparser's, in which % is special.
    config.set_main_option("script_location", str(_FOLDER).replace("%", "%%"))
    return config
