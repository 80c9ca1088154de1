"""Tokens of the service's users. A token is shown once; the ledger stores its SHA-256.

A fast hash is secure, since a token has 256 random bits, which nobody can guess. The time of a lookup in the index may
reveal something about hashes, but nothing about tokens.
"""

import hashlib
import secrets

from sqlalchemy import delete, insert, select

from jobs.errors import ConflictError, NotFoundError, suggest_names
from jobs.ledger import tables
from jobs.ledger.database import Database
from jobs.model import Record
from trainers.errors import ConfigError

PREFIX = "rsk_"
_RANDOM_BYTES = 32
MAX_NAME = 100


class TokenInfo(Record):
    """The public data of a token: its user, and when it was created."""

    name: str
    created_s: float


class Tokens:
    """The tokens of a ledger's users; each method is one transaction."""

    def __init__(self, database: Database):
        self._database = database

    def add(self, name: str, at_s: float) -> str:
        """Creates a token for a user and returns its text, which is not stored.

        Raises:
            ConfigError: the name is empty, is too long, or has unprintable characters.
            ConflictError: the user has a token.
        """
        if not 0 < len(name) <= MAX_NAME or not name.isprintable() or name != name.strip():
            raise ConfigError(f"user {name[:80]!r} is not valid: use 1 to {MAX_NAME} printable characters")
        table = tables.tokens
        token = PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)
        with self._database.writing() as connection:
            if connection.execute(select(table.c.name).where(table.c.name == name)).first() is not None:
                raise ConflictError(f"{name} has a token already: revoke it first, or use another name")
            connection.execute(insert(table).values(name=name, sha256=_sha256(token), created_s=at_s))
        return token

    def user_of(self, token: str) -> str | None:
        table = tables.tokens
        statement = select(table.c.name).where(table.c.sha256 == _sha256(token))
        with self._database.reading() as connection:
            return connection.execute(statement).scalar_one_or_none()

    def all(self) -> list[TokenInfo]:
        table = tables.tokens
        statement = select(table.c.name, table.c.created_s).order_by(table.c.name)
        with self._database.reading() as connection:
            return [TokenInfo(name=name, created_s=created_s) for name, created_s in connection.execute(statement)]

    def revoke(self, name: str) -> None:
        """Deletes a user's token; raises NotFoundError if there is none."""
        table = tables.tokens
        with self._database.writing() as connection:
            if connection.execute(delete(table).where(table.c.name == name)).rowcount == 0:
                names = connection.execute(select(table.c.name)).scalars().all()
                raise NotFoundError(
                    f"no token is named {name}: "
                    f"{suggest_names(name, names, or_else='`rayscribe token list` shows all')}"
                )


def _sha256(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()
