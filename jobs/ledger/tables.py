"""The ledger's tables, in new ledgers and in older ones after migrations.

Fields that change (`runs`) are separate from the large ones that do not (`requests`), so that lists and policies read
small rows, and a progress report does not write the config again. Times are seconds since 1970, UTC.
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
from sqlalchemy.types import TypeDecorator, TypeEngine

from trainers.config.submitted import config_text

# The only row of `lease`: the right to run the controller.
CONTROLLER = "controller"
FLOAT = Float(53)


class PlainText(TypeDecorator[str]):
    """Text that both databases accept and sort alike, whatever a log line or a URL contains.

    PostgreSQL accepts no NUL, and neither database accepts half of a surrogate pair; both are replaced. Collation "C"
    sorts by code point, as SQLite does, so that runs with equal times have the same order in both.
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


def _required(kind: type[TypeEngine[Any]] | TypeEngine[Any], *names: str) -> list[Column[Any]]:
    return [Column(name, kind, nullable=False) for name in names]


def _optional(kind: type[TypeEngine[Any]] | TypeEngine[Any], *names: str) -> list[Column[Any]]:
    return [Column(name, kind) for name in names]


runs = Table(
    "runs",
    METADATA,
    Column("id", PlainText, primary_key=True),
    *_required(PlainText, "uid", "user", "queue", "address", "state", "reason", "asked_sha256"),
    *_required(Json, "gang", "tags", "depends_on"),
    *_required(Integer, "max_retries", "attempt"),
    *_required(BigInteger, "priority", "version"),
    *_required(FLOAT, "submitted_s", "queued_s", "updated_s"),
    *_optional(FLOAT, "ended_s", "not_before_s", "stop_requested_s"),
    *_optional(Integer, "exit_code"),
    *_optional(Json, "progress"),
    *_optional(PlainText, "idempotency_key"),
    UniqueConstraint("user", "idempotency_key"),
    Index("ix_runs_newest", "submitted_s", "id"),
    Index("ix_runs_state", "state", "submitted_s", "id"),
    Index("ix_runs_user_newest", "user", "submitted_s", "id"),
    Index("ix_runs_queue_newest", "queue", "submitted_s", "id"),
    Index("ix_runs_queue", "queue", "state"),
)

requests = Table(
    "requests",
    METADATA,
    Column("run_id", PlainText, ForeignKey("runs.id"), primary_key=True),
    *_required(ConfigText, "config"),
    *_required(PlainText, "package", "run_folder"),
    *_optional(PlainText, "code"),
)

run_tags = Table(
    "run_tags",
    METADATA,
    Column("tag", PlainText, primary_key=True),
    Column("run_id", PlainText, ForeignKey("runs.id"), primary_key=True),
    Index("ix_run_tags_run", "run_id"),
)

attempts = Table(
    "attempts",
    METADATA,
    Column("run_id", PlainText, ForeignKey("runs.id"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    *_required(PlainText, "submission_id", "state", "message"),
    *_required(Json, "gang"),
    *_required(FLOAT, "cpus", "gpus", "created_s"),
    *_optional(FLOAT, "submitted_s", "ended_s"),
    *_optional(PlainText, "resume_from", "cause"),
    *_optional(Integer, "exit_code"),
    *_optional(BigInteger, "last_step"),
    UniqueConstraint("submission_id"),
    Index("ix_attempts_ended", "ended_s"),
)

events = Table(
    "events",
    METADATA,
    # SQLite numbers only columns of type INTEGER, which have 64 bits in SQLite.
    Column("number", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("run_id", PlainText, ForeignKey("runs.id"), nullable=False),
    *_required(Integer, "attempt"),
    *_required(FLOAT, "at_s"),
    *_required(PlainText, "state", "cause", "text"),
    *_optional(PlainText, "before"),
    Index("ix_events_run", "run_id", "number"),
    sqlite_autoincrement=True,
)

lease = Table(
    "lease",
    METADATA,
    Column("name", PlainText, primary_key=True),
    *_optional(PlainText, "holder"),
    *_required(BigInteger, "epoch", "beat"),
)

tokens = Table(
    "tokens",
    METADATA,
    Column("name", PlainText, primary_key=True),
    *_required(PlainText, "sha256"),
    *_required(FLOAT, "created_s"),
    UniqueConstraint("sha256"),
)
