"""W&B in offline mode: what `wandb sync` would send of a run that was killed and resumed."""

from pathlib import Path

import pytest

from tests.trainers.run_folder.writers import EXPERIMENT, begin, first_group, group_of
from tests.trainers.training.trackers.tracked_attempts import LOSSES, SCORES, TEST, run_killed, run_resumed, trackers_of
from trainers.run_folder.layout import WANDB, RunFolder
from trainers.storage import open_storage
from trainers.training.trackers import tracker_feed
from trainers.training.trackers.known_trackers import AXIS, WeightsAndBiases

KEY = "a1b2" * 10


@pytest.mark.integration
def test_an_offline_folder_has_the_run_once_under_one_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    from tests.trainers.training.trackers.wandb_history import history_of  # noqa: PLC0415

    # It has to load the package.
    monkeypatch.setattr(tracker_feed, "LAST_WAIT_S", 120.0)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    folder, wandb = RunFolder(open_storage(str(tmp_path / "run"))), tmp_path / "run" / WANDB
    killed = first_group(folder)
    run_killed(killed, trackers_of(killed, tmp_path, {"wandb": WeightsAndBiases()}))
    resumed = group_of(begin(folder), "y")
    run_resumed(resumed, trackers_of(resumed, tmp_path, {"wandb": WeightsAndBiases()}))
    # `wandb sync` replaces a run by what is in a folder.
    (written,) = wandb.glob("offline-run-*")
    assert written.name.endswith(f"-{EXPERIMENT['id']}")
    rows = history_of(next(written.glob("*.wandb")))
    for name, points in (("train/loss", LOSSES), ("eval/wer", SCORES), ("test/wer", TEST)):
        assert [(row[AXIS], row[name]) for row in rows if name in row] == points
    assert [row["_step"] for row in rows] == sorted({row["_step"] for row in rows})
    assert not [path for path in wandb.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]
