"""Workers in processes of this machine: what they show and leave, and how they end."""

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest

from tests.processes import has_ended, wait_until_ended
from tests.test_architecture import ROOT
from tests.trainers.pipeline.on_machine import rank_work
from tests.trainers.synthetic import config
from trainers.distributed.signals import STOP_SIGNAL, STOPPING
from trainers.errors import DataError, Interruption, LostWorkerError, ProgramError, StoppedError
from trainers.pipeline.on_machine import worker_group
from trainers.pipeline.on_machine.process_server import start_server
from trainers.pipeline.on_machine.worker_group import Work, run_to_end
from trainers.run_folder.attempt_status import worker_logs
from trainers.run_folder.layout import RunFolder
from trainers.storage import open_storage


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    """Handled as a command does."""
    start_server([worker_group.__name__, rank_work.__name__], threads=1)
    STOP_SIGNAL.reset()
    with STOP_SIGNAL.on_signals():
        yield
    STOP_SIGNAL.reset()


def work(run: Callable[..., None], folder: Path, changes: dict[str, Any] | None = None) -> Work:
    """Two workers that do something."""
    task = rank_work.Task(config({"scaling.num_workers": 2, **(changes or {})}), folder)
    return Work(run, task, RunFolder(open_storage(str(folder / "run"))), 1)


def starts(folder: Path) -> int:
    return len([*folder.glob("1-*")])


def logs(wanted: Work) -> list[tuple[int, str]]:
    """Each worker's log, by rank."""
    found = worker_logs(wanted.folder, 1)
    return [(rank, wanted.folder.storage.read_bytes(key).decode()) for rank, _, key in found]


def test_ranks_meet_and_the_driver_shows_what_they_say(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    wanted = work(rank_work.meet, tmp_path, {"scaling.resources_per_worker": {"CPU": 2}})
    run_to_end(wanted)
    assert "met [(0, 2), (1, 2)]\n" in capfd.readouterr().out
    assert logs(wanted) == [(0, "rank 0 prints\n"), (1, "rank 1 prints\n")]


@pytest.mark.integration
def test_a_worker_that_is_killed_takes_the_group_with_it_and_another_one_starts(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    wanted = work(rank_work.crash_once, tmp_path)
    run_to_end(wanted)
    output = capfd.readouterr().out
    assert "the workers restart from the last checkpoint (1 of at most 3): training: the process of a worker" in output
    assert "rank-1: killed by SIGKILL" in output
    assert output.endswith("met\n")
    assert "last words\n" in [text for _, text in logs(wanted)]


def kill_server_at(number: int, patch: pytest.MonkeyPatch) -> list[object]:
    """Kills the process server once it is asked for so many processes, before it starts the last of them."""
    connect, asked = forkserver.connect_to_new_process, []

    def connect_and_kill(descriptors: Any) -> Any:
        asked.append(descriptors)
        server: Any = forkserver._forkserver
        if len(asked) == number:
            # It gets the request, and never acts on it.
            os.kill(server._forkserver_pid, signal.SIGSTOP)
        found = connect(descriptors)
        if len(asked) == number:
            os.kill(server._forkserver_pid, signal.SIGKILL)
        return found

    patch.setattr(forkserver, "connect_to_new_process", connect_and_kill)
    return asked


@pytest.mark.long
def test_where_the_process_server_is_killed_while_workers_start_they_start_once_more(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = kill_server_at(2, monkeypatch)
    run_to_end(work(rank_work.meet, tmp_path))
    output = capfd.readouterr().out
    assert output.count("the workers restart from the last checkpoint (1 of at most 3)") == 1
    assert "the process that starts the others was killed" in output
    assert "met [(0, " in output
    assert len(asked) == 4


@pytest.mark.integration
def test_workers_whose_process_server_is_killed_are_ended_and_start_once_more(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run_to_end(work(rank_work.lose_server, tmp_path))
    output = capfd.readouterr().out
    assert output.count("the workers restart from the last checkpoint") == 1
    assert output.endswith("met\n")
    ranks = [int(path.name.partition("-")[2]) for path in tmp_path.glob("[01]-*")]
    assert len(ranks) == 4
    assert all(map(has_ended, ranks))


@pytest.mark.integration
def test_workers_are_not_started_more_often_than_may_be(tmp_path: Path) -> None:
    with pytest.raises(LostWorkerError, match="killed by SIGKILL"):
        run_to_end(work(rank_work.crash, tmp_path, {"run.max_failures": 1}))
    assert starts(tmp_path) == 2


@pytest.mark.integration
def test_the_error_that_began_it_is_the_one_that_is_raised(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="row 7 is damaged"):
        run_to_end(work(rank_work.refuse, tmp_path))
    assert starts(tmp_path) == 1, "it would recur"
    wanted = work(rank_work.fail, tmp_path)
    with pytest.raises(ProgramError, match="TypeError: no number"):
        run_to_end(wanted)
    # The others may be ended before they get there.
    assert any("Traceback" in text for _, text in logs(wanted))


def signal_at(line: str, patch: pytest.MonkeyPatch) -> list[object]:
    """Sends SIGINT to this process when a worker shows a line; gives all that is shown."""
    shown: list[object] = []

    def show(event: object) -> None:
        shown.append(event)
        if event == line:
            os.kill(os.getpid(), signal.SIGINT)

    patch.setattr(worker_group, "show", show)
    return shown


def test_a_request_to_stop_waits_for_the_workers_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = signal_at("training", monkeypatch)
    with pytest.raises(StoppedError, match="stopped at step 3"):
        run_to_end(work(rank_work.wait_for_stop, tmp_path))
    assert STOP_SIGNAL.exit_code == 130
    assert shown[shown.index("training") + 1 :].count(STOPPING) == 1


@pytest.mark.integration
def test_where_there_is_nothing_to_wait_for_it_ends_the_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signal_at("scoring", monkeypatch)
    with pytest.raises(Interruption):
        run_to_end(work(rank_work.score, tmp_path))


# As a user's may be, it starts without asking whether it is the main module.
PROGRAM = """
import os, pickle, sys
from pathlib import Path
from trainers.pipeline.on_machine.worker_group import run_group
folder = Path(sys.argv[1])
(folder / "driver").write_text(str(os.getpid()))
run_group(pickle.loads((folder / "work").read_bytes()))
"""


@pytest.mark.long
def test_workers_end_with_a_driver_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "work").write_bytes(pickle.dumps(work(rank_work.orphan, tmp_path, {"scaling.num_workers": 1})))
    command = [sys.executable, str(tmp_path / "program.py"), str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    driver = subprocess.run(command, check=False, timeout=120, env=environment, cwd=tmp_path)
    assert driver.returncode == -signal.SIGKILL
    worker = int((tmp_path / "worker").read_text())
    wait_until_ended(worker)
