"""The journal: one total order, whoever races for it, and what its entries come to."""

import json
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.metrics_lines import metrics_of
from tests.s3 import FaultProxy, of_every_bucket
from tests.trainers.run_folder.writers import begin, first_group, group_of
from trainers.config.storage_location import StorageOptions
from trainers.errors import FencedError, ResumeError, StorageError
from trainers.run_folder.fencing import GroupWriter
from trainers.run_folder.journal import Journal, Resize, State, deduplicate, fold
from trainers.run_folder.layout import JOURNAL, RunFolder
from trainers.storage import Storage, open_storage

ROOT = Path(__file__).parents[3]
RACERS, EACH = 8, 12
# Appends EACH entries named <racer>-<n>, as a driver or a worker in a process of its own would.
RACER = """
import pickle
import sys
from trainers.run_folder.journal import Journal
from trainers.run_folder.layout import RunFolder
storage, racer, each = sys.argv[1:]
journal = Journal(RunFolder(pickle.loads(bytes.fromhex(storage))))
sys.stdin.readline()
for number in range(int(each)):
    journal.append(lambda state: {"kind": "quarantined", "name": f"{racer}-{number}"})
"""


def discard(name: str) -> Callable[[State], dict[str, Any]]:
    """Makes the entry that discards a checkpoint, whatever the state."""
    return lambda _: {"kind": "quarantined", "name": name}


@pytest.fixture
def folder(storage: Storage) -> RunFolder:
    """An empty run folder of each kind."""
    return RunFolder(storage)


def entries(folder: RunFolder) -> Iterator[dict[str, object]]:
    """All entries in the order of their files."""
    for entry in folder.storage.list_files(JOURNAL):
        yield json.loads(folder.storage.read_bytes(entry.key))


def check_order(folder: RunFolder, racers: int) -> None:
    """No gap, nothing twice, nothing lost, and each racer's own entries in its own order."""
    found = list(entries(folder))
    assert [entry["number"] for entry in found] == list(range(1, racers * EACH + 1))
    names = [str(entry["name"]) for entry in found]
    for racer in range(racers):
        own = [name for name in names if name.startswith(f"{racer}-")]
        assert own == [f"{racer}-{number}" for number in range(EACH)]


@pytest.mark.integration
def test_threads_that_race_make_one_order(folder: RunFolder) -> None:
    def race(racer: int) -> State:
        journal = Journal(folder)
        for number in range(EACH):
            state = journal.append(discard(f"{racer}-{number}"))
        return state

    with ThreadPoolExecutor(RACERS) as pool:
        states = list(pool.map(race, range(RACERS)))
    check_order(folder, RACERS)
    last = Journal(folder).read()
    assert max(states, key=lambda state: state.number) == last
    assert len(last.quarantined) == RACERS * EACH


@pytest.mark.integration
def test_threads_that_share_a_journal_make_one_order(folder: RunFolder) -> None:
    journal = Journal(folder)

    def race(racer: int) -> None:
        for number in range(EACH):
            journal.append(discard(f"{racer}-{number}"))
            assert journal.read().number > 0

    with ThreadPoolExecutor(RACERS) as pool:
        list(pool.map(race, range(RACERS)))
    check_order(folder, RACERS)


@pytest.mark.integration
def test_processes_that_race_make_one_order(folder: RunFolder) -> None:
    storage = pickle.dumps(folder.storage).hex()
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, storage, str(number), str(EACH)], cwd=ROOT, stdin=subprocess.PIPE
        )
        for number in range(4)
    ]
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write(b"\n")
        racer.stdin.flush()
    assert [racer.wait(60) for racer in racers] == [0] * len(racers)
    check_order(folder, len(racers))


@pytest.mark.integration
def test_each_decision_is_made_on_the_state_that_its_entry_follows(folder: RunFolder) -> None:
    """Eight that each take a number which nobody has: without compare-and-swap some would take the same."""

    def take(_: int) -> None:
        Journal(folder).append(lambda state: {"kind": "quarantined", "name": str(len(state.quarantined))})

    with ThreadPoolExecutor(RACERS) as pool:
        list(pool.map(take, range(RACERS)))
    assert Journal(folder).read().quarantined == {str(number) for number in range(RACERS)}


@of_every_bucket
def test_a_lost_answer_adds_one_entry(shaky_storage: Storage, fault_proxy: FaultProxy) -> None:
    folder = RunFolder(shaky_storage)
    fault_proxy.lose_answer_next(1, matches=lambda method, path: JOURNAL in path)
    state = Journal(folder).append(lambda _: {"kind": "quarantined", "name": "once"})
    assert state.number == 1
    assert [entry["name"] for entry in entries(folder)] == ["once"]


def test_nothing_is_added_where_nothing_is_to_be_decided(folder: RunFolder) -> None:
    assert Journal(folder).append(lambda state: None) == State()
    assert folder.storage.list_files() == []


def test_what_was_read_once_is_not_read_again(s3_bucket: str, fault_proxy: FaultProxy) -> None:
    folder = RunFolder(open_storage(f"{s3_bucket}/run", StorageOptions(fault_proxy.url)))
    journal = Journal(folder)
    for name in ("a", "b", "c"):
        journal.append(discard(name))
    fault_proxy.requests.clear()
    assert journal.read().quarantined == {"a", "b", "c"}
    assert [method for method, _ in fault_proxy.requests] == ["HEAD"], "only whether there is one more"


@pytest.mark.integration
def test_an_entry_of_a_newer_version_is_refused_by_name(folder: RunFolder) -> None:
    Journal(folder).append(lambda _: {"kind": "quarantined", "name": "a"})
    unknown = "entry 2 of the run's journal is of the unknown kind 'danced'"
    with pytest.raises(ResumeError, match=unknown):
        Journal(folder).append(lambda _: {"kind": "danced"})
    with pytest.raises(ResumeError, match=unknown):
        Journal(folder).read()


def test_a_damaged_entry_is_named_and_never_another_one(tmp_path: Path) -> None:
    folder = RunFolder(open_storage(str(tmp_path)))
    group_of(begin(folder), "x")
    path, state = tmp_path / JOURNAL / "00000002.json", Journal(folder).read()
    whole = path.read_bytes()
    flips = [whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :] for place in range(len(whole))]
    for damaged in (b"", bytes(len(whole)), whole[: len(whole) // 2], *flips):
        path.write_bytes(damaged)
        try:
            assert Journal(folder).read() == state
        except ResumeError as error:
            assert "entry 2 of the run's journal is damaged" in str(error)


def test_reading_at_once_and_one_by_one_come_to_the_same(folder: RunFolder) -> None:
    group_of(begin(folder), "x")
    group_of(begin(folder), "y")
    state = State()
    for entry in entries(folder):
        state = fold(state, entry)
    assert Journal(folder).read() == state
    assert [(group.attempt, group.id, group.sealed_bytes) for group in state.groups] == [(1, "x", 0), (2, "y", None)]


def test_metrics_count_up_to_the_moment_when_the_next_group_opened(folder: RunFolder) -> None:
    driver = begin(folder)
    stale = group_of(driver, "x")
    folder.storage.append_line(stale.group.metrics_key, '{"step": 1}')
    next_one = group_of(driver, "y")
    folder.storage.append_line(stale.group.metrics_key, '{"step": 2}')
    folder.storage.append_line(next_one.group.metrics_key, '{"step": 2, "again": true}')
    assert metrics_of(folder) == [{"step": 1}, {"step": 2, "again": True}]


def test_a_line_that_a_kill_cut_short_does_not_count(folder: RunFolder) -> None:
    driver = begin(folder)
    killed = group_of(driver, "x")
    folder.storage.write_bytes(killed.group.metrics_key, b'{"step": 1}\n{"st')
    assert metrics_of(folder) == [{"step": 1}]
    group_of(driver, "y")
    assert metrics_of(folder) == [{"step": 1}]
    folder.storage.append_line(killed.group.metrics_key, '{"step": 9}')
    assert metrics_of(folder) == [{"step": 1}]


def test_a_step_that_was_made_again_after_a_kill_is_shown_once() -> None:
    killed = [b'{"step": 1, "loss": 3}', b'{"step": 2, "loss": 2}', b'{"step": 2, "eval_wer": 50}', b'{"step": 3, "lo']
    again = [b'{"step": 2, "loss": 2.5}', b'{"step": 2, "eval_wer": 40}', b'{"step": 4, "loss": 1}']
    assert deduplicate(b"\n".join([*killed, *again]) + b"\n").splitlines() == [killed[0], *again]


def test_steps_are_in_order_where_a_group_began_behind_one_that_came_less_far() -> None:
    lines = [b'{"step": %d, "loss": 1}' % step for step in (4, 5, 1, 2, 3, 6)]
    assert deduplicate(b"\n".join(lines) + b"\n").splitlines() == sorted(lines)


def test_attempts_by_hand_count_on_and_those_of_a_service_are_given(folder: RunFolder) -> None:
    assert [begin(folder).attempt, begin(folder).attempt, begin(folder, number=5).attempt] == [1, 2, 5]
    for number in (4, 5):
        with pytest.raises(FencedError, match=f"taken this run over, so attempt {number} ends here"):
            begin(folder, number=number)
    assert begin(folder).attempt == 6


def test_a_change_of_the_number_of_workers_is_entered_with_its_step(folder: RunFolder) -> None:
    driver = begin(folder)
    for name, workers, step, line in (
        ("x", 3, 0, None),
        ("y", 2, 40, "from step 40 on, 2 workers train, before 3"),
        ("z", 2, 60, None),
    ):
        writer = GroupWriter.of(driver.folder, driver.attempt, name)
        writer.open(workers)
        assert writer.resize(step, workers) == line
    # One that ended before it had a checkpoint to train from has changed nothing.
    GroupWriter.of(driver.folder, driver.attempt, "gone").open(1)
    last = GroupWriter.of(driver.folder, driver.attempt, "last")
    last.open(4)
    assert last.resize(60, 4) == "from step 60 on, 4 workers train, before 2"
    state = Journal(folder).read()
    assert (state.workers, state.resizes) == (4, (Resize(40, 3, 2, 1), Resize(60, 2, 4, 1)))
    with pytest.raises(FencedError):
        writer.resize(80, 5)


@pytest.mark.integration
def test_drivers_that_race_get_attempts_of_their_own(folder: RunFolder) -> None:
    with ThreadPoolExecutor(RACERS) as pool:
        numbers = list(pool.map(lambda _: begin(folder).attempt, range(RACERS)))
    assert sorted(numbers) == list(range(1, RACERS + 1))


def test_a_journal_that_is_not_there_is_a_storage_that_is_not_mounted_and_no_newer_attempt(folder: RunFolder) -> None:
    driver = begin(folder)
    group_of(driver, "x")
    folder.storage.delete_tree("journal")
    later = GroupWriter.of(RunFolder(folder.storage), driver.attempt, "y")
    with pytest.raises(StorageError, match="the journal, which attempt 1 has opened, was not found"):
        later.open(1)


def test_a_service_s_attempt_ends_the_group_before_at_once_and_one_by_hand_when_its_own_group_opens(
    folder: RunFolder,
) -> None:
    first = first_group(folder)
    by_hand = begin(folder)
    first.check()
    second = group_of(by_hand, "y")
    with pytest.raises(FencedError, match="attempt 2 has taken this run over, so attempt 1 ends here"):
        first.check()
    begin(folder, number=3)
    with pytest.raises(FencedError, match="attempt 3"):
        second.check()
    with pytest.raises(FencedError, match="attempt 3"):
        group_of(by_hand, "z")


def test_a_driver_is_fenced_by_the_next_one_however_it_began(folder: RunFolder) -> None:
    drivers = [begin(folder), begin(folder), begin(folder, number=7), begin(folder)]
    for stale, newer in pairwise(drivers):
        with pytest.raises(FencedError, match=f"so attempt {stale.attempt} ends here"):
            stale.append(lambda state: {"kind": "prepared", "attempt": 0, "processor": None})
        assert stale.attempt < newer.attempt
    assert Journal(folder).read().prepared is None


def test_another_experiment_in_the_folder_begins_with_its_own_number_of_workers_and_metrics() -> None:
    def opened(attempt: int, experiment: str) -> dict[str, Any]:
        shared = {"driver": f"driver-{attempt}", "takes_over": True, "sealed": {}, "experiment": {"id": experiment}}
        return {"kind": "opened", "number": attempt, "attempt": attempt, **shared}

    group = {"kind": "opened", "number": 2, "attempt": 1, "group": "g", "workers": 3, "sealed": {}}
    resized = {"kind": "resized", "number": 3, "attempt": 1, "step": 20, "from": 3, "to": 2}
    state = State()
    for entry in (opened(1, "one"), group, resized):
        state = fold(state, entry)
    same, other = fold(state, opened(2, "one")), fold(state, opened(2, "two"))
    assert (same.workers, same.resizes) == (2, (Resize(20, 3, 2, 1),))
    assert (other.workers, other.resizes) == (None, ())
    assert [len(state.groups) for state in (same, other)] == [1, 0]
