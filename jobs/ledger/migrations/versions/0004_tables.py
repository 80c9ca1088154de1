"""The tables: runs, requests, attempts, events, the lease, tokens. Replaces the migrations up to 0004."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = None
branch_labels = None
depends_on = None

# Types of jobs.ledger.tables at that time: a migration never changes, even if that module does.
TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
JSON = sa.Text()
TIME = sa.Float(53)
NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Creates all tables."""
    _runs()
    _parts_of_runs()
    _attempts_and_events()
    _service()


def _runs() -> None:
    op.create_table(
        "runs",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("uid", TEXT, nullable=False),
        sa.Column("user", TEXT, nullable=False),
        sa.Column("queue", TEXT, nullable=False),
        sa.Column("priority", sa.BigInteger(), nullable=False),
        sa.Column("address", TEXT, nullable=False),
        sa.Column("gang", JSON, nullable=False),
        sa.Column("tags", JSON, nullable=False),
        sa.Column("depends_on", JSON, nullable=False),
        sa.Column("max_retries", sa.Integer(), nullable=False),
        sa.Column("state", TEXT, nullable=False),
        sa.Column("reason", TEXT, nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("exit_code", sa.Integer()),
        sa.Column("submitted_s", TIME, nullable=False),
        sa.Column("queued_s", TIME, nullable=False),
        sa.Column("updated_s", TIME, nullable=False),
        sa.Column("ended_s", TIME),
        sa.Column("not_before_s", TIME),
        sa.Column("stop_requested_s", TIME),
        sa.Column("progress", JSON),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("idempotency_key", TEXT),
        sa.Column("asked_sha256", TEXT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_runs"),
        sa.UniqueConstraint("user", "idempotency_key", name="uq_runs_user_idempotency_key"),
    )
    op.create_index("ix_runs_newest", "runs", ["submitted_s", "id"])
    op.create_index("ix_runs_state", "runs", ["state", "submitted_s", "id"])
    op.create_index("ix_runs_user", "runs", ["user", "state", "submitted_s", "id"])
    op.create_index("ix_runs_queue", "runs", ["queue", "state", "submitted_s", "id"])


def _parts_of_runs() -> None:
    op.create_table(
        "requests",
        sa.Column("run_id", TEXT, nullable=False),
        sa.Column("config", JSON, nullable=False),
        sa.Column("package", TEXT, nullable=False),
        sa.Column("code", TEXT),
        sa.Column("run_folder", TEXT, nullable=False),
        sa.PrimaryKeyConstraint("run_id", name="pk_requests"),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_requests_run_id"),
    )
    op.create_table(
        "run_tags",
        sa.Column("run_id", TEXT, nullable=False),
        sa.Column("tag", TEXT, nullable=False),
        sa.Column("state", TEXT, nullable=False),
        sa.Column("submitted_s", TIME, nullable=False),
        sa.PrimaryKeyConstraint("run_id", "tag", name="pk_run_tags"),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_run_tags_run_id"),
    )
    op.create_index("ix_run_tags_tag", "run_tags", ["tag", "state", "submitted_s", "run_id"])


def _attempts_and_events() -> None:
    op.create_table(
        "attempts",
        sa.Column("run_id", TEXT, nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("submission_id", TEXT, nullable=False),
        sa.Column("state", TEXT, nullable=False),
        sa.Column("gang", JSON, nullable=False),
        sa.Column("cpus", sa.Float(53), nullable=False),
        sa.Column("gpus", sa.Float(53), nullable=False),
        sa.Column("resume_from", TEXT),
        sa.Column("created_s", TIME, nullable=False),
        sa.Column("submitted_s", TIME),
        sa.Column("ended_s", TIME),
        sa.Column("cause", TEXT),
        sa.Column("exit_code", sa.Integer()),
        sa.Column("message", TEXT, nullable=False),
        sa.Column("last_step", sa.BigInteger()),
        sa.PrimaryKeyConstraint("run_id", "number", name="pk_attempts"),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_attempts_run_id"),
        sa.UniqueConstraint("submission_id", name="uq_attempts_submission_id"),
    )
    op.create_index("ix_attempts_ended", "attempts", ["ended_s"])
    op.create_table(
        "events",
        sa.Column("number", NUMBER, nullable=False),
        sa.Column("run_id", TEXT, nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("at_s", TIME, nullable=False),
        sa.Column("state", TEXT, nullable=False),
        sa.Column("before", TEXT),
        sa.Column("cause", TEXT, nullable=False),
        sa.Column("text", TEXT, nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_events"),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_events_run_id"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_events_run", "events", ["run_id", "number"])


def _service() -> None:
    lease = op.create_table(
        "lease",
        sa.Column("name", TEXT, nullable=False),
        sa.Column("holder", TEXT),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("beat", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_lease"),
    )
    op.bulk_insert(lease, [{"name": "controller", "holder": None, "epoch": 0, "beat": 0}])
    op.create_table(
        "tokens",
        sa.Column("name", TEXT, nullable=False),
        sa.Column("sha256", TEXT, nullable=False),
        sa.Column("created_s", TIME, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_tokens"),
        sa.UniqueConstraint("sha256", name="uq_tokens_sha256"),
    )
