"""TensorBoard's event files of a run that was killed and resumed."""

from pathlib import Path

import pytest

from tests.trainers.run_folder.writers import begin, first_group, group_of
from tests.trainers.training.trackers.event_files import points_of
from tests.trainers.training.trackers.tracked_attempts import LOSSES, SCORES, TEST, run_killed, run_resumed, trackers_of
from trainers.run_folder.layout import TENSORBOARD, RunFolder
from trainers.storage import open_storage
from trainers.training.trackers import tracker_feed
from trainers.training.trackers.known_trackers import TensorBoard


def test_event_files_of_a_resumed_run_have_each_step_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # It may have to load the package.
    monkeypatch.setattr(tracker_feed, "LAST_WAIT_S", 120.0)
    folder = RunFolder(open_storage(str(tmp_path / "run")))
    killed = first_group(folder)
    run_killed(killed, trackers_of(killed, tmp_path, {"tensorboard": TensorBoard()}))
    events = tmp_path / "run" / TENSORBOARD
    assert points_of(events, "train/loss") == LOSSES[:5]
    resumed = group_of(begin(folder), "y")
    run_resumed(resumed, trackers_of(resumed, tmp_path, {"tensorboard": TensorBoard()}))
    assert points_of(events, "train/loss") == LOSSES
    assert points_of(events, "eval/wer") == SCORES
    assert points_of(events, "test/wer") == TEST
