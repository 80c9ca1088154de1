"""One list of the runs of a queue and of those without one, and how each is found."""

import os
import shutil
import subprocess
import sys
import threading
import time
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from jobs.cli.train import continue_run
from jobs.clusters.registry import Clusters
from jobs.errors import ConflictError, NotFoundError
from jobs.ledger import Ledger
from jobs.model import STOPPED_EXIT_CODE, AttemptState, Cause, Run, RunFilter, RunState
from jobs.scheduler.limits import QueuesConfig
from jobs.service.direct import direct_runs
from jobs.service.direct.all_runs import AllRuns
from jobs.service.package_store import PackageStore
from jobs.service.service import Service
from tests.jobs.clusters.fake_cluster import FakeCluster
from tests.jobs.ledger.builders import make_run, wait_until
from tests.jobs.service.direct.registry import register, train
from tests.trainers.run_folder.writers import begin, group_of, staged
from trainers.config.secrets import REFERENCES
from trainers.distributed.console import show
from trainers.distributed.machine import process_name
from trainers.errors import ConfigError, RefusedError, StorageError
from trainers.run_folder.attempt_status import Phase, StatusWriter
from trainers.run_folder.checkpoints import RetentionPolicy, list_checkpoints, upload_staged
from trainers.run_folder.driver_log import DriverLog
from trainers.run_folder.fencing import GroupWriter
from trainers.run_folder.journal import Journal
from trainers.run_folder.layout import ATTEMPT, ATTEMPTS, RunFolder
from trainers.run_folder.run_register import find_registered
from trainers.storage import open_storage

# A driver that trains until it is asked to stop; its clock may be behind.
DRIVER = """
import sys, threading, time
from pathlib import Path
from tests.jobs.service.direct.registry import train
from tests.trainers.run_folder.test_run_register import run_of
from trainers.distributed.signals import STOP_SIGNAL
from trainers.run_folder.run_register import find_registered, registered
now_s, folder = time.time, sys.argv[1]
time.time = lambda: now_s() - float(sys.argv[2])
with STOP_SIGNAL.on_signals(), registered(run_of(folder, "driven"), address=None, no_ray=True):
    train(find_registered(f"{folder}/driven"), Path(folder))
    print("begun", flush=True)
    threading.Event().wait()
"""


@contextmanager
def driver_of(storage_path: Path, behind_s: float = 0.0) -> Iterator["subprocess.Popen[bytes]"]:
    """A driver of the run `driven` that trains, and is killed at the end of the block."""
    command = [sys.executable, "-c", DRIVER, str(storage_path), str(behind_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as driver:
        try:
            assert driver.stdout is not None
            assert driver.stdout.readline() == b"begun\n"
            yield driver
        finally:
            driver.kill()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYSCRIBE_HOME", str(tmp_path / "home"))


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}")
    yield ledger
    ledger.close()


@pytest.fixture
def runs(ledger: Ledger, tmp_path: Path) -> AllRuns:
    clusters, packages = Clusters(connect=lambda _: FakeCluster()), PackageStore(tmp_path / "packages")
    service = Service(ledger, clusters, packages, QueuesConfig(), user="ana", addresses=["http://head:8265"])
    return AllRuns(service, timeout_s=10.0)


def queue(ledger: Ledger, name: str, folder: str, at_s: float) -> None:
    """Has a run in the ledger."""
    ledger.requests.add_run(make_run(name, run_folder=folder, submitted_s=at_s), text="submitted by ana")


def test_a_killed_training_is_shown_with_how_far_it_came(runs: AllRuns, tmp_path: Path) -> None:
    checkpoint = train(register(tmp_path), tmp_path)
    run = runs.run("sr")
    assert (run.state, run.attempt, run.queue, run.run_folder) == (RunState.FAILED, 1, "", f"{tmp_path}/sr")
    assert run.reason == f"its driver was killed at step 3/8 · WER 12.50% · it has {checkpoint}"
    assert run.progress is not None and run.progress.best_wer == 12.5
    (attempt,) = runs.attempts("sr")
    assert (attempt.cause, attempt.last_step, attempt.resume_from) == (Cause.ENTRYPOINT, 3, None)
    events = runs.events("sr")
    assert [event.cause for event in events] == ["opened", "opened", "checkpoint", "ended"]
    assert events[-2].text == f"{checkpoint} is stored · WER 12.50%"
    assert (events[-1].state, events[-1].text) == (RunState.FAILED, run.reason)
    assert runs.events("sr", after=2) == events[2:]
    GroupWriter.of(RunFolder(open_storage(f"{tmp_path}/sr")), 1, "again").open(2, "rank 1 died")
    assert runs.events("sr")[-2].text == "attempt 1 trains again, with 2 workers, after: rank 1 died"
    progress = runs.run("sr").progress
    assert progress is not None and progress.restarts_text == "1 restart within the attempt, after: rank 1 died"


def test_attempts_name_checkpoints_that_have_been_removed_since(runs: AllRuns, tmp_path: Path) -> None:
    known = register(tmp_path)
    best, folder = train(known, tmp_path), RunFolder(open_storage(known.url))
    retention = RetentionPolicy(1, "eval_wer")
    second = group_of(begin(folder), "y")
    # Staged by the first attempt when it was stopped, uploaded by the second, which then removes it.
    for step, name in ((5, "a1-x"), (8, "a2-y")):
        upload_staged(staged(tmp_path / "staging", step, 99.0, name), second, retention)
    begin(folder)
    assert [item.name for item in list_checkpoints(folder)] == [best, "checkpoint-8-a2-y"]
    attempts = [(attempt.resume_from, attempt.last_step) for attempt in runs.attempts("sr")]
    assert attempts == [(None, 5), ("checkpoint-5-a1-x-y", 8), ("checkpoint-8-a2-y", None)]


def test_an_attempt_that_finished_the_run_stays_so_when_another_trains_on(runs: AllRuns, tmp_path: Path) -> None:
    known = register(tmp_path)
    train(known, tmp_path)
    folder = RunFolder(open_storage(known.url))
    finished = {"kind": "finished", "attempt": 1, "outputs": "attempts/1", "files": [], "result": {}}
    Journal(folder).append(lambda _: finished)
    begin(folder)
    assert [attempt.cause for attempt in runs.attempts("sr")] == [Cause.SUCCEEDED, Cause.ENTRYPOINT]
    Journal(folder).append(lambda _: {**finished, "attempt": 2})
    assert [attempt.cause for attempt in runs.attempts("sr")] == [Cause.SUCCEEDED, Cause.SUCCEEDED]


@pytest.mark.parametrize("ended", [True, False])
def test_a_log_has_what_its_driver_showed(
    runs: AllRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, ended: bool
) -> None:
    known = register(tmp_path, ended_s=2000.0 if ended else None, exit_code=15 if ended else None)
    monkeypatch.setenv("TOKEN", "s3cret-value")
    monkeypatch.setenv(REFERENCES, '{"TOKEN": {"env": "X"}}')
    log = DriverLog(RunFolder(open_storage(known.url)))
    with pytest.raises(StorageError), log:
        show("prepare train: 3 rows")
        train(known, tmp_path)
        log.begin(1)
        show("step 3/8 with s3cret-value")
        raise StorageError("the disk is full")
    page = runs.logs("sr", attempt=None, source=None, cursor=None)
    expected = ["prepare train: 3 rows", "step 3/8 with ***", "StorageError: the disk is full"]
    assert [line.text for line in page.lines if line.source == "driver"] == expected


def test_a_training_that_goes_on_is_shown_with_its_phase(runs: AllRuns, tmp_path: Path) -> None:
    known = register(tmp_path, process=process_name())
    assert runs.run("sr").state == RunState.SETTING_UP
    train(known, tmp_path)
    assert (runs.run("sr").state, runs.run("sr").reason) == (RunState.TRAINING, "step 3/8 · WER 12.50%")
    # What an earlier start has left says nothing of this one, by another process.
    replace(known, process=process_name(os.getppid()), started_s=2000.0).write()
    assert runs.run("sr").state == RunState.SETTING_UP
    # Earlier versions did not write which process began an attempt.
    RunFolder(open_storage(known.url)).write_json(f"{ATTEMPTS}/1/{ATTEMPT}", {"started": "2026-01-01T00:00:00+00:00"})
    assert runs.run("sr").state == RunState.TRAINING
    replace(known, started_s=2e10).write()
    assert runs.run("sr").state == RunState.SETTING_UP


@pytest.mark.parametrize(
    ("code", "state"),
    [(0, RunState.SUCCEEDED), (STOPPED_EXIT_CODE, RunState.STOPPED), (130, RunState.STOPPED), (3, RunState.FAILED)],
)
def test_a_folder_that_is_gone_is_said(runs: AllRuns, tmp_path: Path, code: int, state: RunState) -> None:
    known = register(tmp_path, ended_s=1100.0, exit_code=code, attempt=1)
    train(known, tmp_path)
    assert "gone" not in runs.run("sr").reason
    shutil.rmtree(known.url)
    assert (runs.run("sr").state, runs.run("sr").reason) == (state, f"its folder does not exist: {known.url}")
    assert runs.attempts("sr") == []
    assert runs.forget_gone() == [known.url]
    assert runs.runs().runs == []


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("data.train: /x.csv: no such file\nmore", "data.train: /x.csv: no such file"),
        ("rank 0: the program ended with exit code 2:\n  can't open x.py\nmore", "exit code 2: can't open x.py"),
    ],
)
def test_a_run_that_failed_before_it_had_a_folder_says_why(
    runs: AllRuns, tmp_path: Path, message: str, reason: str
) -> None:
    register(tmp_path, ended_s=1100.0, exit_code=3, reason=message)
    assert runs.run("sr").state == RunState.FAILED
    assert runs.run("sr").reason.endswith(reason)


def test_a_storage_that_is_not_there_hides_no_other_run(runs: AllRuns, tmp_path: Path) -> None:
    train(register(tmp_path), tmp_path)
    # No server listens there.
    config = {"run": {"name": "far", "storage_path": "s3://bucket/runs", "s3_endpoint_url": "http://127.0.0.1:9"}}
    register(tmp_path, "far", url="s3://bucket/runs/far", config=config, ended_s=2.0, exit_code=0)
    quick = AllRuns(runs._queued, timeout_s=0.5)
    shown = {run.id: run for run in quick.runs().runs}
    assert shown["far"].state == RunState.SUCCEEDED and "not readable" in shown["far"].reason
    assert shown["sr"].reason.startswith("its driver was killed")
    assert quick.attempts("far") == []


@pytest.mark.integration
def test_the_pages_of_a_list_have_every_run_once_newest_first(runs: AllRuns, ledger: Ledger, tmp_path: Path) -> None:
    for number in range(7):
        queue(ledger, f"q{number}", f"/mnt/runs/q{number}", 1000.0 + 20 * number)
        register(tmp_path, f"d{number}", created_s=1010.0 + 20 * number)
    # Two of the same time, and one that both know.
    register(tmp_path, "d-same", created_s=1120.0)
    register(tmp_path, "q3", url="/mnt/runs/q3", created_s=1060.0)
    expected = [name for number in reversed(range(7)) for name in (f"d{number}", f"q{number}")]
    expected.insert(2, "d-same")
    for limit in (1, 2, 4, 100):
        shown, cursor = [], None
        while True:
            page = runs.runs(limit=limit, cursor=cursor)
            assert len(page.runs) <= limit
            shown += [run.id for run in page.runs]
            if (cursor := page.next_cursor) is None:
                break
        assert shown == expected
    numbers = ("1" + "0" * 400, "NaN", "-Infinity")
    for wrong in ("nonsense", *(urlsafe_b64encode(f'[{each}, "a"]'.encode()).decode() for each in numbers)):
        with pytest.raises(ConfigError, match=f"cursor '{wrong}' is not the cursor of a list"):
            runs.runs(cursor=wrong)


def test_filters_are_of_all_runs(runs: AllRuns, ledger: Ledger, tmp_path: Path) -> None:
    queue(ledger, "queued", "/mnt/runs/queued", 1000.0)
    register(tmp_path, config={"run": {}, "job": {"tags": ["serbian"]}}, ended_s=2.0, exit_code=0, attempt=1)
    assert [run.id for run in runs.runs(RunFilter(states=[RunState.QUEUED])).runs] == ["queued"]
    assert [run.id for run in runs.runs(RunFilter(states=[RunState.SUCCEEDED])).runs] == ["sr"]
    assert [run.id for run in runs.runs(RunFilter(tag="serbian")).runs] == ["sr"]
    assert [run.id for run in runs.runs(RunFilter(queue="default")).runs] == ["queued"]
    assert runs.runs(RunFilter(user="nobody")).runs == []


def test_a_run_is_found_by_name_folder_and_url(
    runs: AllRuns, ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = register(tmp_path)
    train(known, tmp_path)
    queue(ledger, "queued", "s3://bucket/runs/queued", 1000.0)
    (tmp_path / "link").symlink_to(tmp_path)
    monkeypatch.chdir(tmp_path)
    for text in ("sr", known.url, f"{known.url}/", "./sr", f"{tmp_path}/link/sr", f"{tmp_path}/x/../sr"):
        assert AllRuns(runs._queued).run(text).run_folder == known.url
    for text in ("queued", "s3://bucket/runs/queued", "s3://bucket/runs/queued/"):
        assert AllRuns(runs._queued).find(text) == "queued"


def test_a_folder_that_nobody_has_registered_is_read_as_it_is(runs: AllRuns, tmp_path: Path) -> None:
    known = register(tmp_path)
    train(known, tmp_path)
    Path(known.url, "config.yaml").write_text("run: {name: sr}\nscaling: {num_workers: 2}\n")
    runs.forget(known.url)
    with pytest.raises(NotFoundError, match="no run is named sr"):
        AllRuns(runs._queued).run("sr")
    found = AllRuns(runs._queued).run(known.url)
    assert (found.id, found.gang.num_workers) == ("sr", 2)
    assert found.reason.startswith("step 3/8 · WER 12.50%")
    with pytest.raises(NotFoundError, match=f"no run is in {tmp_path}/nothing"):
        runs.run(f"{tmp_path}/nothing")
    assert not (tmp_path / "nothing").exists()


def test_a_name_that_is_not_there_or_is_of_several_is_refused(runs: AllRuns, ledger: Ledger, tmp_path: Path) -> None:
    register(tmp_path, "serbian-small")
    queue(ledger, "serbian-tiny", "/mnt/runs/serbian-tiny", 1000.0)
    with pytest.raises(NotFoundError, match="no run is named serbian-smal: did you mean serbian-small or serbian-tiny"):
        runs.run("serbian-smal")
    with pytest.raises(NotFoundError, match="no run is named xyz: `rayscribe list` shows all"):
        runs.run("xyz")
    register(tmp_path / "other", "serbian-small")
    with pytest.raises(ConflictError, match="serbian-small names 2 runs; give the folder: ") as error:
        runs.run("serbian-small")
    assert f"{tmp_path}/other/serbian-small" in str(error.value)
    register(tmp_path, "serbian-tiny")
    with pytest.raises(ConflictError, match=r"serbian-tiny names 2 runs; .*/mnt/runs/serbian-tiny \(queued\)"):
        runs.run("serbian-tiny")


def test_a_run_of_a_queue_that_was_started_again_without_it_is_one_run(
    runs: AllRuns, ledger: Ledger, tmp_path: Path
) -> None:
    queue(ledger, "sr", f"{tmp_path}/sr", 900.0)
    known = register(tmp_path, created_s=1000.0)
    assert runs.find("sr") == "sr"
    ledger.requests.request_stop("sr", by="ana", at_s=950.0)
    assert AllRuns(runs._queued).find("sr") == known
    first = runs.runs(limit=1)
    assert [run.queue for run in first.runs] == [""]
    assert first.next_cursor is None or runs.runs(limit=1, cursor=first.next_cursor).runs == []
    assert [run.queue for run in runs.runs(RunFilter(queue="default")).runs] == ["default"]


def test_a_driver_of_this_machine_is_stopped_and_then_known_as_stopped(runs: AllRuns, tmp_path: Path) -> None:
    with driver_of(tmp_path):
        with pytest.raises(ConflictError, match="driven is running: stop it first"):
            runs.forget("driven")
        asked = runs.stop("driven")
        assert asked.stop_requested_s is not None and asked.reason.startswith("stopping")
        wait_until(lambda: runs.run("driven").state.ended, "the driver's end")
    stopped = runs.run("driven")
    assert (stopped.state, stopped.exit_code) == (RunState.STOPPED, STOPPED_EXIT_CODE)
    assert runs.stop("driven").state == RunState.STOPPED, "and nothing is stopped twice"


def continue_refused(runs: AllRuns, run: Run) -> str | None:
    """Why a run is not continued; None: it is."""
    known = runs.find(run.id)
    assert not isinstance(known, str)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jobs.cli.train.run_task", lambda arguments: 0)
        try:
            continue_run(run, known, None)
        except ConflictError as error:
            return str(error)
    return None


@pytest.mark.integration
def test_a_driver_from_before_a_restart_of_the_machine_has_ended(
    runs: AllRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    boot_id = tmp_path / "boot_id"
    boot_id.write_text("another start")
    with driver_of(tmp_path) as driver:
        assert runs.run("driven").state == RunState.TRAINING
        with monkeypatch.context() as restarted:
            restarted.setattr("trainers.distributed.machine.BOOT_ID", boot_id)
            ended = runs.run("driven")
            assert ended.state == RunState.FAILED
            assert ended.reason.startswith("its driver ended when this machine was restarted at step 3/8 · ")
            assert runs.stop("driven") == ended, "and the process that has its number now is not asked"
            assert continue_refused(runs, ended) is None
        assert driver.poll() is None
        assert runs.run("driven").state == RunState.TRAINING


@pytest.mark.integration
def test_a_clock_that_was_set_back_hides_no_driver(runs: AllRuns, tmp_path: Path) -> None:
    with driver_of(tmp_path):
        pass
    assert runs.run("driven").reason.startswith("its driver was killed at step 3/8")
    shutil.rmtree(tmp_path / "driven")
    with driver_of(tmp_path, behind_s=3600.0):
        (run,) = runs.runs().runs
        assert (run.state, run.reason) == (RunState.TRAINING, "step 3/8 · WER 12.50%")
        refused = continue_refused(runs, run)
        assert refused is not None and "stop it first" in refused
    assert runs.run("driven").reason.startswith("its driver was killed at step 3/8")


def test_an_attempt_that_is_refused_hides_none_that_trains_and_finishes(runs: AllRuns, tmp_path: Path) -> None:
    known = register(tmp_path, process="gpu-box/0000/pid:[1]/77/123")
    train(known, tmp_path)
    folder = RunFolder(open_storage(known.url))
    second = begin(folder)
    with StatusWriter(folder, second.attempt) as status:
        status.update(Phase.ENDED, detail="another attempt of this run trains on this node")
    assert runs.run("sr").reason == "another attempt of this run trains on this node"
    with StatusWriter(folder, 1) as status:
        status.update(Phase.TRAINING, step=4, max_steps=8)
    run = runs.run("sr")
    assert (run.state, run.attempt, run.reason) == (RunState.TRAINING, 1, "step 4/8")
    assert [attempt.state for attempt in runs.attempts("sr")] == [AttemptState.SUBMITTED, AttemptState.ENDED]
    finished = {"kind": "finished", "attempt": 1, "outputs": "attempts/1", "files": [], "result": {}}
    Journal(folder).append(lambda _: finished)
    for detail, shown in (("stopped; the same command continues", "finished; its driver ended"), ("WER 4%", "WER 4%")):
        with StatusWriter(folder, 1) as status:
            status.update(Phase.ENDED, detail=detail)
        assert runs.run("sr").state == RunState.SUCCEEDED and runs.run("sr").reason.startswith(shown)


@pytest.mark.parametrize(("code", "refused"), [(None, False), (4, False), (143, False), (0, True)])
def test_a_finished_run_is_completed_where_its_driver_did_not_end_well(
    runs: AllRuns, tmp_path: Path, code: int | None, *, refused: bool
) -> None:
    known = register(tmp_path, ended_s=None if code is None else 1100.0, exit_code=code, attempt=1)
    train(known, tmp_path)
    folder = RunFolder(open_storage(known.url))
    Journal(folder).append(lambda _: {"kind": "finished", "attempt": 1, "outputs": "o", "files": [], "result": {}})
    run = runs.run("sr")
    assert run.state == RunState.SUCCEEDED
    assert ("`rayscribe resume sr`, completes it" in run.reason) is not refused
    assert (continue_refused(runs, run) is not None) is refused


def test_a_finished_run_whose_model_is_refused_has_failed(runs: AllRuns, tmp_path: Path) -> None:
    why = "the model is not better than the initial weights"
    known = register(tmp_path, ended_s=1100.0, exit_code=RefusedError.exit_code, attempt=1, reason=why)
    train(known, tmp_path)
    folder = RunFolder(open_storage(known.url))
    Journal(folder).append(lambda _: {"kind": "finished", "attempt": 1, "outputs": "o", "files": [], "result": {}})
    run = runs.run("sr")
    assert (run.state, run.reason) == (RunState.FAILED, why)


def test_a_driver_elsewhere_is_not_stopped_and_it_is_said_how(runs: AllRuns, tmp_path: Path) -> None:
    known = register(tmp_path, process="gpu-box/0000/pid:[1]/77/123")
    train(known, tmp_path)
    assert runs.run("sr").state == RunState.TRAINING
    with pytest.raises(ConflictError, match=r"sr was started without a queue, on gpu-box, as process 77: press Ctrl-C"):
        runs.stop("sr")


@pytest.mark.parametrize("is_container", [True, False], ids=["a restarted container", "a reboot under a new name"])
def test_a_driver_that_is_not_seen_and_writes_nothing_has_ended(
    runs: AllRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_container: bool
) -> None:
    host, boot, rest = process_name().split("/", 2)
    process = f"{host}/{boot}/pid:[1]/77/123" if is_container else f"former/0000/{rest}"
    known = register(tmp_path, process=process, started_s=time.time())
    name = train(known, tmp_path)
    assert runs.run("sr").state == RunState.TRAINING
    later_s = time.time() + 3600
    monkeypatch.setattr("jobs.service.direct.direct_runs.time.time", lambda: later_s)
    ended = runs.run("sr")
    assert ended.state == RunState.FAILED
    assert ended.reason.startswith("step 3/8 · WER 12.50% · no update for 1 h 00 min: its driver, on ")
    assert ended.reason.endswith(f"cannot be seen from here, and has probably ended · it has {name}")
    assert runs.stop("sr").reason == ended.reason, "nothing is left to stop"
    assert continue_refused(runs, ended) is None


def test_a_run_of_a_queue_is_not_forgotten(runs: AllRuns, ledger: Ledger, tmp_path: Path) -> None:
    queue(ledger, "queued", "/mnt/runs/queued", 1000.0)
    known = register(tmp_path)
    with pytest.raises(ConflictError, match="queued is a run of a queue"):
        runs.forget("queued")
    train(known, tmp_path)
    assert runs.forget("sr") == known.url
    assert find_registered(known.url) is None
    assert Path(known.url).is_dir()


def test_a_named_folder_whose_storage_hangs_is_said_not_to_respond(
    runs: AllRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct_runs, "NAMED_TIMEOUT_S", 0.01)
    monkeypatch.setattr(direct_runs, "open_storage", lambda *_, **__: threading.Event().wait())
    with pytest.raises(StorageError, match=r"s3://bucket/runs/x: its storage has not responded in 0.01 s"):
        runs.run("s3://bucket/runs/x")
