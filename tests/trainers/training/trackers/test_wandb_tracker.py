"""W&B in offline mode: what `wandb sync` would send of a run that was killed and resumed."""

from pathlib import Path

import pytest

from tests.trainers.run_folder.writers import EXPERIMENT, begin, first_group, group_of
from tests.trainers.training.trackers.tracked_attempts import LOSSES, SCORES, TEST, run_killed, run_resumed, trackers_of
from tests.trainers.training.trackers.wandb_history import history_of, run_of
from trainers.run_folder.layout import WANDB, RunFolder
from trainers.storage import open_storage
from trainers.training.trackers import tracker_feed
from trainers.training.trackers.wandb_tracker import AXIS, WeightsAndBiases

pytestmark = pytest.mark.skipif("False")
SECRET = "a1b2" * 10


def test_an_offline_folder_has_the_run_once_under_one_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracker_feed, "LAST_WAIT_S", 120.0)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_API_KEY", SECRET)
    folder, wandb = RunFolder(open_storage(str(tmp_path / "run"))), tmp_path / "run" / WANDB
    killed = first_group(folder)
    run_killed(killed, trackers_of(killed, tmp_path, {"wandb": WeightsAndBiases()}))
    resumed = group_of(begin(folder), "y")
    run_resumed(resumed, trackers_of(resumed, tmp_path, {"wandb": WeightsAndBiases()}))
