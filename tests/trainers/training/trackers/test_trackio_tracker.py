"""Trackio's own database, with a run that was killed and resumed."""

import json
import sqlite3
from pathlib import Path

import pytest

from tests.trainers.training.trackers.tracked_attempts import LOSSES, SCORES, TEST
from tests.trainers.training.trackers.trackers_environment import run_attempts

pytestmark = pytest.mark.long


def test_the_database_has_one_run_with_a_row_for_each_step(tmp_path: Path) -> None:
    for attempt in ("killed", "resumed"):
        run_attempts("trackio", tmp_path / "run", attempt, TRACKIO_DIR=str(tmp_path / "database"))
    with sqlite3.connect(tmp_path / "database" / "rayscribe.db") as connection:
        rows = connection.execute("SELECT run_name, step, metrics FROM metrics ORDER BY id").fetchall()
    assert {name for name, _, _ in rows} == {"digits-e1"}
    values = [(step, json.loads(metrics)) for _, step, metrics in rows]
    for name, points in (("train/loss", LOSSES), ("eval/wer", SCORES), ("test/wer", TEST)):
        assert [(step, metrics[name]) for step, metrics in values if name in metrics] == points
    assert len(rows) == len(LOSSES)
