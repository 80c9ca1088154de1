"""Feeding trackers: what they lack, once; never in the way of training."""

from pathlib import Path
from threading import Event

import pytest

from tests.trainers.run_folder.writers import begin, first_group, group_of
from tests.trainers.training.trackers.tracked_attempts import (
    KILLED,
    LOSSES,
    log_steps,
    run_killed,
    run_resumed,
    trackers_of,
)
from trainers.run_folder.journal import KINDS
from trainers.run_folder.layout import TENSORBOARD, RunFolder
from trainers.storage import Storage, open_storage
from trainers.training.trackers import tracker_feed
from trainers.training.trackers.tracker_feed import TrackedLine, TrackedRun, TrackerFiles


class Server:
    """A tracker's server in memory, which is not available for the next `failures` calls."""

    def __init__(self, failures: int = 0):
        self.failures = failures
        self.lines: list[TrackedLine] = []
        self.ends: list[bool] = []

    def open(self, run: TrackedRun) -> int:
        self._answer()
        return self.lines[-1].number if self.lines else -1

    def log(self, line: TrackedLine) -> None:
        self._answer()
        self.lines.append(line)

    def close(self, *, finished: bool) -> None:
        self.ends.append(finished)

    @property
    def losses(self) -> list[tuple[int, float]]:
        return [(line.step, line.values["train/loss"]) for line in self.lines if "train/loss" in line.values]

    def _answer(self) -> None:
        if self.failures:
            self.failures -= 1
            raise ConnectionError("refused")


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """An empty run folder."""
    return RunFolder(open_storage(str(tmp_path / "run")))


def test_a_resumed_run_sends_each_line_once(folder: RunFolder, tmp_path: Path) -> None:
    server = Server()
    writer = first_group(folder)
    run_killed(writer, trackers_of(writer, tmp_path, {"server": server}))
    resumed = group_of(begin(folder), "y")
    run_resumed(resumed, trackers_of(resumed, tmp_path, {"server": server}))
    assert server.losses == LOSSES
    assert [divmod(line.number, KINDS) for line in server.lines if line.number % KINDS] == [
        (3, 1),
        (6, 1),
        (9, 1),
        (9, 2),
    ]
    assert server.ends == [False, True]
    # Who came to a step first has logged it.
    speeds = {line.step: line.values["train/clips_per_s"] for line in server.lines if "train/loss" in line.values}
    assert (speeds[5], speeds[6]) == (100.0, 200.0)


@pytest.mark.parametrize("failures", [1, 3])
def test_one_that_is_not_available_is_told_once_and_gets_all_when_it_is(
    folder: RunFolder, tmp_path: Path, failures: int
) -> None:
    server, said = Server(failures), list[str]()
    writer = first_group(folder)
    run_resumed(writer, trackers_of(writer, tmp_path, {"server": server}, said))
    assert [step for step, _ in server.losses] == [4, 5, 6, 7, 8, 9]
    assert len(said) == 1
    assert "report_to: server does not accept metrics now; training continues" in said[0] and "refused" in said[0]


def test_one_that_is_named_later_gets_what_was_before(folder: RunFolder, tmp_path: Path) -> None:
    writer = first_group(folder)
    run_killed(writer, trackers_of(writer, tmp_path, {}))
    server = Server()
    resumed = group_of(begin(folder), "y")
    run_resumed(resumed, trackers_of(resumed, tmp_path, {"server": server}))
    assert server.losses == LOSSES


def test_one_that_never_answers_keeps_neither_training_nor_its_end(
    folder: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Silent(Server):
        def open(self, run: TrackedRun) -> int:
            released.wait()
            return -1

    released, said, server = Event(), list[str](), Server()
    monkeypatch.setattr(tracker_feed, "LAST_WAIT_S", 1.0)
    writer = first_group(folder)
    try:
        run_resumed(writer, trackers_of(writer, tmp_path, {"silent": Silent(), "server": server}, said))
    finally:
        released.set()
    assert [step for step, _ in server.losses] == [4, 5, 6, 7, 8, 9], "it waits for no other tracker"
    assert len(said) == 1 and "silent does not accept metrics now" in said[0]


def test_a_stale_group_sends_nothing_more(folder: RunFolder, tmp_path: Path) -> None:
    server, said = Server(), list[str]()
    stale = first_group(folder)
    trackers = trackers_of(stale, tmp_path, {"server": server}, said)
    begin(folder, number=2)
    with trackers, pytest.raises(Exception, match="attempt 2 has taken this run over"):
        log_steps(stale, trackers, KILLED)
    assert (server.lines, said) == ([], [])


def test_a_number_that_is_not_finite_is_left_out() -> None:
    line = TrackedLine.parsed('{"step": 7, "attempt": 2, "time": "2026-01-02T03:04:05+00:00", "loss": null, "lr": 0.1}')
    assert (line.step, line.number, line.values) == (7, 7 * KINDS, {"train/lr": 0.1})


def test_files_in_a_bucket_replace_those_of_the_group_before(storage: Storage, tmp_path: Path) -> None:
    folder = RunFolder(storage)
    for name in ("a", "b"):
        files = TrackerFiles(folder, tmp_path / name)
        (files.renew(TENSORBOARD) / f"events-{name}").write_text("1")
        files.upload()
        files.upload()
    assert [entry.key for entry in storage.list_files(TENSORBOARD)] == [f"{TENSORBOARD}/events-b"]
