"""The ledger's tables, as the newest migration leaves them.

What changes (`runs`) is separate from the large part that does not (`requests`), so that lists and policies read
narrow rows, and a progress report does not write a complete config again. Times are seconds since 1970, UTC.
"""

import json
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Dialect,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
)
from sqlalchemy.types import TypeDecorator

from trainers.config.submitted import config_text

# The only row of `lease`: the right to run the controller.
CONTROLLER = "controller"


class PlainText(TypeDecorator[str]):
    """Text that both databases accept and sort alike, whatever a log line or a URL contains.

    PostgreSQL accepts no NUL, and neither database accepts half of a surrogate pair; both are replaced. Collation "C"
    sorts by code point, as SQLite does, so that pages of equal times have the same order.
    """

    impl = Text().with_variant(Text(collation="C"), "postgresql")
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        if value is None:
            return None
        return str(value).replace("\x00", "\ufffd").encode("utf-8", "replace").decode("utf-8")


class Json(TypeDecorator[Any]):
    """A value as JSON text; NaN is kept, since a loss may be NaN."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        return None if value is None else json.dumps(value, separators=(",", ":"))

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        return None if value is None else json.loads(value)


class ConfigText(Json):
    """A run's config, as the exact text that its attempts receive."""

    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        return None if value is None else config_text(value)


METADATA = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
    }
)

runs = Table(
    "runs",
    METADATA,
    Column("id", PlainText, primary_key=True),
    Column("uid", PlainText, nullable=False),
    Column("user", PlainText, nullable=False),
    Column("queue", PlainText, nullable=False),
    Column("priority", BigInteger, nullable=False),
    Column("address", PlainText, nullable=False),
    Column("gang", Json, nullable=False),
    Column("tags", Json, nullable=False),
    Column("depends_on", Json, nullable=False),
    Column("max_retries", Integer, nullable=False),
    Column("state", PlainText, nullable=False),
    Column("reason", PlainText, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("exit_code", Integer),
    Column("submitted_s", Float(53), nullable=False),
    Column("queued_s", Float(53), nullable=False),
    Column("updated_s", Float(53), nullable=False),
    Column("ended_s", Float(53)),
    Column("not_before_s", Float(53)),
    Column("stop_requested_s", Float(53)),
    Column("progress", Json),
    Column("version", BigInteger, nullable=False),
    Column("idempotency_key", PlainText),
    Column("asked_sha256", PlainText, nullable=False),
    UniqueConstraint("user", "idempotency_key"),
    # One index for every filter of a list, each in the order of its pages.
    Index("ix_runs_newest", "submitted_s", "id"),
    Index("ix_runs_state", "state", "submitted_s", "id"),
    Index("ix_runs_user", "user", "state", "submitted_s", "id"),
    Index("ix_runs_queue", "queue", "state", "submitted_s", "id"),
)

requests = Table(
    "requests",
    METADATA,
    Column("run_id", PlainText, ForeignKey("runs.id"), primary_key=True),
    Column("config", ConfigText, nullable=False),
    Column("package", PlainText, nullable=False),
    Column("code", PlainText),
    Column("run_folder", PlainText, nullable=False),
)

# Repeats the run's state and time, so that one index has a tag's newest runs in a state next to each other.
run_tags = Table(
    "run_tags",
    METADATA,
    Column("run_id", PlainText, ForeignKey("runs.id"), primary_key=True),
    Column("tag", PlainText, primary_key=True),
    Column("state", PlainText, nullable=False),
    Column("submitted_s", Float(53), nullable=False),
    Index("ix_run_tags_tag", "tag", "state", "submitted_s", "run_id"),
)

attempts = Table(
    "attempts",
    METADATA,
    Column("run_id", PlainText, ForeignKey("runs.id"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("submission_id", PlainText, nullable=False),
    Column("state", PlainText, nullable=False),
    Column("gang", Json, nullable=False),
    Column("cpus", Float(53), nullable=False),
    Column("gpus", Float(53), nullable=False),
    Column("resume_from", PlainText),
    Column("created_s", Float(53), nullable=False),
    Column("submitted_s", Float(53)),
    Column("ended_s", Float(53)),
    Column("cause", PlainText),
    Column("exit_code", Integer),
    Column("message", PlainText, nullable=False),
    Column("last_step", BigInteger),
    UniqueConstraint("submission_id"),
    Index("ix_attempts_ended", "ended_s"),
)

events = Table(
    "events",
    METADATA,
    # SQLite numbers only columns that are exactly INTEGER, which have 64 bits there.
    Column("number", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("run_id", PlainText, ForeignKey("runs.id"), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("at_s", Float(53), nullable=False),
    Column("state", PlainText, nullable=False),
    Column("before", PlainText),
    Column("cause", PlainText, nullable=False),
    Column("text", PlainText, nullable=False),
    Index("ix_events_run", "run_id", "number"),
    sqlite_autoincrement=True,
)

lease = Table(
    "lease",
    METADATA,
    Column("name", PlainText, primary_key=True),
    Column("holder", PlainText),
    Column("epoch", BigInteger, nullable=False),
    Column("beat", BigInteger, nullable=False),
)

tokens = Table(
    "tokens",
    METADATA,
    Column("name", PlainText, primary_key=True),
    Column("sha256", PlainText, nullable=False),
    Column("created_s", Float(53), nullable=False),
    UniqueConstraint("sha256"),
)
