"""From the text of a database's URL to what SQLAlchemy opens, and to what a message may show of it. Pure."""

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from trainers.config.storage_location import in_home
from trainers.errors import ConfigError

FORMS = "sqlite:////absolute/path/ledger.db or postgresql://user:password@host:5432/database"
POSTGRES_DRIVER = "postgresql+psycopg"
_POSTGRES_NAMES = {"postgres", "postgresql", POSTGRES_DRIVER}
_SECRET_PARAMETERS = {"password", "sslpassword"}
_MASK = "***"


def parse(text: str) -> URL:
    """Reads the URL of a SQLite file or of a PostgreSQL database.

    Raises:
        ConfigError: it is neither, or the file's path is relative.
    """
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        # What cannot be parsed cannot be masked surely either.
        raise ConfigError(f"the ledger's database is no URL; write {FORMS}") from None
    if url.drivername in _POSTGRES_NAMES:
        return url.set(drivername=POSTGRES_DRIVER)
    if url.drivername != "sqlite":
        raise ConfigError(f"the ledger's database is {masked(url)}; write {FORMS}")
    if url.host or not url.database or url.database.startswith((":memory:", "file:")):
        raise ConfigError(f"the ledger's database is {masked(url)}, not a file's path; write {FORMS}")
    path = in_home(url.database)
    if not path.is_absolute():
        # It would be another ledger in each folder that a command is called in.
        raise ConfigError(
            f"the ledger's database is {masked(url)}, a relative path; "
            f"an absolute one has four slashes: sqlite:///{path.absolute()}"
        )
    return url.set(database=str(path))


def masked(url: URL) -> str:
    """The URL as messages and logs may show it."""
    if url.drivername == "sqlite" and not url.host:
        return f"sqlite:///{url.database or ''}"
    secret = {name: _MASK for name in url.query if name in _SECRET_PARAMETERS}
    shown = url.update_query_dict(secret).render_as_string(hide_password=True)
    return shown.replace(POSTGRES_DRIVER, "postgresql", 1).replace("%2A%2A%2A", _MASK)
