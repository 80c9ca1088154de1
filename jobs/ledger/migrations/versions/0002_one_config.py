"""One config: a run is what its config says; the recipe and the overrides that made it are kept no longer."""

import json
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
REQUESTS = sa.table(
    "requests",
    sa.column("run_id", sa.Text),
    sa.column("config", sa.Text),
    sa.column("run_folder", sa.Text),
    sa.column("spec_path", sa.Text),
    sa.column("package", sa.Text),
)
RUNS = sa.table("runs", sa.column("id", sa.Text), sa.column("attempt", sa.Integer))


def upgrade() -> None:
    """Keeps of each package one recipe, by which its task.py is started, and makes every config complete."""
    former = op.create_table(
        "former_packages",
        sa.Column("sha256", TEXT, nullable=False),
        sa.Column("recipe", TEXT, nullable=False),
        sa.PrimaryKeyConstraint("sha256", name="pk_former_packages"),
    )
    recipes = sa.select(REQUESTS.c.package, sa.func.min(REQUESTS.c.spec_path)).group_by(REQUESTS.c.package)
    op.execute(sa.insert(former).from_select(["sha256", "recipe"], recipes))
    connection = op.get_bind()
    rows = sa.select(REQUESTS.c.run_id, REQUESTS.c.config, REQUESTS.c.run_folder, RUNS.c.attempt)
    for row in connection.execute(rows.join(RUNS, RUNS.c.id == REQUESTS.c.run_id)).all():
        # A null that an attempt has begun with means the home of its node, where its checkpoints are.
        folder = row.run_folder if row.attempt == 0 else None
        text = _complete(json.loads(row.config), folder)
        connection.execute(sa.update(REQUESTS).where(REQUESTS.c.run_id == row.run_id).values(config=text))
    op.drop_column("requests", "spec_path")
    op.drop_column("requests", "overrides")


def _complete(config: Any, run_folder: str | None) -> str:
    """The config with the storage path that the service had made of null: what is watched is what runs."""
    run = config.get("run")
    if run_folder is not None and isinstance(run, dict) and run.get("storage_path") is None:
        run["storage_path"] = run_folder.rpartition("/")[0]
    # As the ledger writes configs from now on.
    return json.dumps(config, separators=(",", ":")).replace("$", "\\u0024").replace("'", "\\u0027")
