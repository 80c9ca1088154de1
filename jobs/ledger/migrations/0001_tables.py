"""Creates the tables; jobs.ledger.tables explains their columns."""

from typing import Any

import sqlalchemy as sa
from alembic import op

# Named after the version that brought it: a ledger of an unreleased commit is refused, not taken for this one.
revision = "0.1.0"
down_revision = None

# Types of jobs.ledger.tables at that time: a migration never changes, even if that module does.
TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
JSON, FLOAT, INTEGER, LARGE = sa.Text(), sa.Float(53), sa.Integer(), sa.BigInteger()
NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Creates all tables."""
    _runs()
    _attempts_and_events()
    _service()


def _runs() -> None:
    op.create_table(
        "runs",
        sa.Column("id", TEXT, primary_key=True),
        *_required(TEXT, "uid", "user", "queue", "address", "state", "reason", "asked_sha256"),
        *_required(JSON, "gang", "tags", "depends_on"),
        *_required(INTEGER, "max_retries", "attempt"),
        *_required(LARGE, "priority", "version"),
        *_required(FLOAT, "submitted_s", "queued_s", "updated_s"),
        *_optional(FLOAT, "ended_s", "not_before_s", "stop_requested_s"),
        *_optional(INTEGER, "exit_code"),
        *_optional(JSON, "progress"),
        *_optional(TEXT, "idempotency_key"),
        sa.UniqueConstraint("user", "idempotency_key"),
    )
    op.create_index("ix_runs_newest", "runs", ["submitted_s", "id"])
    op.create_index("ix_runs_state", "runs", ["state", "submitted_s", "id"])
    op.create_index("ix_runs_user", "runs", ["user", "state", "submitted_s", "id"])
    op.create_index("ix_runs_queue", "runs", ["queue", "state", "submitted_s", "id"])
    op.create_table(
        "requests",
        sa.Column("run_id", TEXT, sa.ForeignKey("runs.id"), primary_key=True),
        *_required(JSON, "config"),
        *_required(TEXT, "package", "run_folder"),
        *_optional(TEXT, "code"),
    )
    op.create_table(
        "run_tags",
        sa.Column("run_id", TEXT, sa.ForeignKey("runs.id"), primary_key=True),
        sa.Column("tag", TEXT, primary_key=True),
        *_required(TEXT, "state"),
        *_required(FLOAT, "submitted_s"),
    )
    op.create_index("ix_run_tags_tag", "run_tags", ["tag", "state", "submitted_s", "run_id"])


def _attempts_and_events() -> None:
    op.create_table(
        "attempts",
        sa.Column("run_id", TEXT, sa.ForeignKey("runs.id"), primary_key=True),
        sa.Column("number", INTEGER, primary_key=True, autoincrement=False),
        *_required(TEXT, "submission_id", "state", "message"),
        *_required(JSON, "gang"),
        *_required(FLOAT, "cpus", "gpus", "created_s"),
        *_optional(FLOAT, "submitted_s", "ended_s"),
        *_optional(TEXT, "resume_from", "cause"),
        *_optional(INTEGER, "exit_code"),
        *_optional(LARGE, "last_step"),
        sa.UniqueConstraint("submission_id"),
    )
    op.create_index("ix_attempts_ended", "attempts", ["ended_s"])
    op.create_table(
        "events",
        sa.Column("number", NUMBER, primary_key=True),
        sa.Column("run_id", TEXT, sa.ForeignKey("runs.id"), nullable=False),
        *_required(INTEGER, "attempt"),
        *_required(FLOAT, "at_s"),
        *_required(TEXT, "state", "cause", "text"),
        *_optional(TEXT, "before"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_events_run", "events", ["run_id", "number"])


def _service() -> None:
    lease = op.create_table(
        "lease",
        sa.Column("name", TEXT, primary_key=True),
        *_optional(TEXT, "holder"),
        *_required(LARGE, "epoch", "beat"),
    )
    op.bulk_insert(lease, [{"name": "controller", "holder": None, "epoch": 0, "beat": 0}])
    op.create_table(
        "tokens",
        sa.Column("name", TEXT, primary_key=True),
        *_required(TEXT, "sha256"),
        *_required(FLOAT, "created_s"),
        sa.UniqueConstraint("sha256"),
    )


def _required(kind: sa.types.TypeEngine[Any], *names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, kind, nullable=False) for name in names]


def _optional(kind: sa.types.TypeEngine[Any], *names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, kind) for name in names]
