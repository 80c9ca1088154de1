"""What this user's list remembers of runs that were started without a queue."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.trainers.run_folder.writers import begin
from tests.trainers.synthetic import config
from trainers.config.schema import TrainConfig
from trainers.distributed.machine import process_name
from trainers.errors import DataError, Interruption, ResumeError, StoppedError
from trainers.run_folder.layout import RunFolder
from trainers.run_folder.run_register import Registered, all_registered, find_registered, forget, registered

KILLED = """
import os, sys
from tests.trainers.run_folder.test_run_register import run_of
from trainers.run_folder.run_register import registered
with registered(run_of(sys.argv[1]), address=None, no_ray=True):
    os._exit(9)
"""


WORKS = """
import sys
from tests.trainers.run_folder.test_run_register import run_of
from trainers.run_folder.run_register import registered
with registered(run_of(sys.argv[1]), address=None, no_ray=True):
    print("begun", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RAYSCRIBE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def run_of(storage_path: object, name: str = "sr") -> TrainConfig:
    """The config of a run below a storage path."""
    return config({"run": {"name": name, "storage_path": str(storage_path)}})


def only() -> Registered:
    (found,) = all_registered()
    return found


def test_a_run_is_there_while_its_driver_works_and_after_with_how_it_ended(tmp_path: Path) -> None:
    with registered(run_of(tmp_path), address="127.0.0.1:1", no_ray=False):
        running = only()
        begin(RunFolder.of(run_of(tmp_path)))
    assert (running.url, running.name, running.is_running) == (f"{tmp_path}/sr", "sr", True)
    assert (running.address, running.folder, running.exit_code) == ("127.0.0.1:1", str(Path.cwd()), None)
    assert config(running.config) == run_of(tmp_path)
    ended = only()
    assert (ended.is_running, ended.exit_code, ended.reason, ended.attempt) == (False, 0, "", 1)


@pytest.mark.parametrize(
    ("error", "code", "reason"),
    [
        (DataError("data.train: no such file"), DataError.exit_code, "data.train: no such file"),
        (StoppedError("stopped at step 3"), 130, "stopped at step 3"),
        (Interruption(), 130, "stopped; the same command continues from what is there"),
        (ZeroDivisionError("division"), 1, "ZeroDivisionError: division"),
    ],
    ids=["expected", "stop with a checkpoint", "stop", "bug"],
)
def test_what_stopped_a_run_is_remembered(tmp_path: Path, error: BaseException, code: int, reason: str) -> None:
    with pytest.raises(type(error)), registered(run_of(tmp_path), address=None, no_ray=True):
        raise error
    assert (only().exit_code, only().reason) == (code, reason)


def test_a_run_that_starts_again_is_one_run_as_old_as_before(tmp_path: Path) -> None:
    for _ in range(2):
        with registered(run_of(tmp_path), address=None, no_ray=True):
            pass
    assert only().created_s < only().started_s
    with registered(run_of(tmp_path, "other"), address=None, no_ray=True):
        assert [run.name for run in all_registered()] == ["other", "sr"]
    forget(f"{tmp_path}/sr")
    assert find_registered(f"{tmp_path}/sr") is None
    assert only().name == "other"


def test_a_driver_that_was_killed_is_known_to_be_gone(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False, timeout=120)
    assert done.returncode == 9
    assert (only().is_running, only().exit_code) == (False, None)


def test_many_that_start_at_once_are_all_remembered(tmp_path: Path) -> None:
    def start(number: int) -> None:
        with registered(run_of(tmp_path, f"run-{number % 20}"), address=None, no_ray=True):
            pass

    with ThreadPoolExecutor(8) as pool:
        assert len([*pool.map(start, range(100))]) == 100
    assert {run.name for run in all_registered()} == {f"run-{number}" for number in range(20)}
    assert all(run.exit_code == 0 for run in all_registered())


def test_a_state_folder_that_cannot_be_written_costs_no_run(home: Path, tmp_path: Path) -> None:
    home.write_text("a file in the place of a folder")
    with registered(run_of(tmp_path), address=None, no_ray=True):
        pass
    assert all_registered() == []


def test_a_file_that_is_no_run_hides_none(home: Path, tmp_path: Path) -> None:
    with registered(run_of(tmp_path), address=None, no_ray=True):
        pass
    (home / "runs" / "other.json").write_text('{"url": 1, "unknown": 2}')
    (home / "runs" / "half.json").write_text('{"url": "/x')
    assert only().name == "sr"


@pytest.mark.parametrize("number_of_attempts", [0, 1])
def test_a_start_that_is_refused_leaves_what_is_known_of_the_run_s_attempts(
    tmp_path: Path, number_of_attempts: int
) -> None:
    with pytest.raises(StoppedError), registered(run_of(tmp_path), address=None, no_ray=True):
        for _ in range(number_of_attempts):
            begin(RunFolder.of(run_of(tmp_path)))
        raise StoppedError("stopped at step 3")
    stopped = only()
    with pytest.raises(ResumeError), registered(run_of(tmp_path), address="127.0.0.1:1", no_ray=False):
        assert only().is_running
        raise ResumeError("holds another experiment")
    assert only().reason == ("stopped at step 3" if number_of_attempts else "holds another experiment")
    assert (only() == stopped) == bool(number_of_attempts)


def test_a_second_start_that_is_refused_hides_no_run_that_works(tmp_path: Path) -> None:
    with registered(run_of(tmp_path), address=None, no_ray=True):
        begin(RunFolder.of(run_of(tmp_path)))
        with pytest.raises(ResumeError), registered(run_of(tmp_path), address=None, no_ray=True):
            raise ResumeError("another driver works on this run")
        assert only().is_running
    assert only().exit_code == 0


def test_a_start_while_another_process_runs_it_is_refused_and_writes_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WORKS, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        first.stdout.readline()
        before = only()
        message = f"process {first.pid} of this machine runs it: wait for its end, or stop it .rayscribe stop sr"
        with pytest.raises(ResumeError, match=message), registered(run_of(tmp_path), address=None, no_ray=True):
            pytest.fail("it began")
        assert only() == before
        with registered(run_of(tmp_path, "other"), address=None, no_ray=True):
            pass
    with registered(run_of(tmp_path), address=None, no_ray=True):
        assert find_registered(f"{tmp_path}/sr") != before


def test_of_two_that_start_in_the_same_moment_one_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        other = Registered(f"{tmp_path}/sr", {}, process_name(process.pid), 1e9, 1e9, "")
        write, written = Registered.write, list[Registered]()

        def both(start: Registered) -> None:
            # The other one has looked before this one wrote, and so it did not see it.
            written.append(start)
            write(start)
            if len(written) == 1:
                write(other)

        monkeypatch.setattr(Registered, "write", both)
        with pytest.raises(ResumeError), registered(run_of(tmp_path), address=None, no_ray=True):
            pytest.fail("it began")
        assert only() == other
        process.communicate(b"\n")


def test_of_starts_that_end_in_any_order_the_last_is_known(tmp_path: Path) -> None:
    with registered(run_of(tmp_path), address=None, no_ray=True):
        begin(RunFolder.of(run_of(tmp_path)))
        with registered(run_of(tmp_path), address="127.0.0.1:1", no_ray=False):
            begin(RunFolder.of(run_of(tmp_path)))
    assert (only().address, only().attempt) == ("127.0.0.1:1", 2)
