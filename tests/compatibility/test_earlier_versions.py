"""Reads, continues and scores what each released version left on disk, see `make_state.py`."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import create_engine

from jobs.ledger import Ledger, tables
from tests.compatibility.make_state import SPLITS, STEPS, read_ledger, recipe
from tests.trainers.synthetic import config
from trainers.main import main
from trainers.pipeline.engine import LocalEngine
from trainers.pipeline.evaluate import evaluate
from trainers.run_folder.journal import Journal
from trainers.run_folder.layout import RunFolder

VERSIONS = sorted(Path(__file__).parent.glob("v*"))


@pytest.fixture(params=VERSIONS, ids=lambda path: path.name)
def state(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A copy of what a version has written."""
    yield Path(shutil.copytree(request.param, tmp_path / "state"))


def train(state: Path, **changes: Any) -> int:
    """Runs task.py's main on the recipe of a state."""
    written = state / "recipe.yaml"
    written.write_text(yaml.safe_dump(recipe(state, **changes)))
    return main(["--config", str(written), "--no-ray"])


def test_there_is_a_version() -> None:
    assert VERSIONS


@pytest.mark.integration
def test_a_finished_run_is_shown_and_trained_further_on_the_data_it_prepared(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = state / "runs" / "kept"
    wer = json.loads((run / "evaluation" / "test.json").read_text())["wer"]
    assert train(state) == 0
    shown = capsys.readouterr().out
    assert f"WER {wer:.1f}% on test ({SPLITS['test']} utterances)" in shown
    assert "step " not in shown, "nothing is trained"
    assert train(state, **{"training.max_steps": 2 * STEPS, "training.extend": "rescale"}) == 0
    shown = capsys.readouterr().out
    for split, count in SPLITS.items():
        assert f"prepare {split}: already prepared, {count} clips" in shown
    assert f"resuming from checkpoint-{STEPS}-" in shown
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "eval_wer" in line] == list(range(2, 2 * STEPS + 1, 2))
    assert {item.step for item in Journal(RunFolder.of(config(recipe(state)))).read().checkpoints} >= {2 * STEPS}


def test_a_model_scores_as_it_did(state: Path, tmp_path: Path) -> None:
    run = state / "runs" / "kept"
    kept = json.loads((run / "evaluation" / "test.json").read_text())
    elsewhere = recipe(state, **{"run.storage_path": str(tmp_path / "scores")})
    found = dict(evaluate(config(elsewhere), LocalEngine(), model=str(run), split="test").totals)
    # Of float32, on another processor.
    assert found.pop("loss") == pytest.approx(kept.pop("loss"), rel=1e-4)
    assert found == kept


def test_a_ledger_tells_what_it_told_and_has_the_tables_of_a_new_one(state: Path) -> None:
    url = f"sqlite:///{state / 'ledger.db'}"
    ledger = Ledger.open(url)
    found = read_ledger(ledger)
    ledger.close()
    with create_engine(url).connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), tables.METADATA) == []
    for kind, kept in json.loads((state / "ledger.json").read_text()).items():
        assert len(found[kind]) == len(kept)
        for before, now in zip(kept, found[kind], strict=True):
            assert _as_kept(now, before) == before, kind


def _as_kept(now: Any, before: Any) -> Any:
    """Returns content without the fields that a later version has added, none of which was known before."""
    if not isinstance(before, dict) or not isinstance(now, dict):
        return now
    assert all(value in (None, [], {}) for name, value in now.items() if name not in before)
    return {name: _as_kept(value, before[name]) for name, value in now.items() if name in before}
