"""The controller, at the seam where Ray begins: retries, stops and lost clusters."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from jobs.clusters.managed.cluster_record import LocalRecord
from jobs.ledger import RunChangedError
from jobs.model import Cause, RunState
from jobs.service import run_folders
from jobs.service.controller import ABANDON_AFTER_S
from jobs.service.package_store import PackageStore
from jobs.service.run_changes import refused, write
from jobs.service.run_folders import RunFolders
from jobs.submission.ray_request import METADATA_UID, stop_grace_s
from runtime_env.own_code import VERSION
from tests.jobs.sample import sample_run
from tests.jobs.service.controller_harness import LOST_NODE, ControllerHarness, harness_on
from tests.trainers.run_folder.writers import first_group, staged
from trainers.config.submitted import CHECKPOINT_VARIABLE
from trainers.errors import StorageError
from trainers.run_folder.attempt_status import status_key
from trainers.run_folder.checkpoints import RetentionPolicy, upload_staged
from trainers.run_folder.fencing import Driver
from trainers.run_folder.journal import Journal
from trainers.run_folder.layout import RunFolder
from trainers.storage import open_storage

CONFIG_ERROR = ("FAILED", 2, "error: 1 problem", "JOB_ENTRYPOINT_COMMAND_ERROR")


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[ControllerHarness]:
    """An empty ledger and a cluster with eight CPUs."""
    with harness_on(f"sqlite:///{tmp_path / 'ledger.db'}", tmp_path) as made:
        yield made


def test_a_run_goes_from_the_queue_to_its_end(harness: ControllerHarness) -> None:
    harness.submit("one")
    harness.run_rounds(harness.controller())
    run = harness.ledger.run("one")
    assert (run.state, run.exit_code, run.attempt) == (RunState.SUCCEEDED, 0, 1)
    causes = [event.cause for event in harness.ledger.events("one")]
    assert causes == ["submitted", "admitted", "ray_submitted", "ended"]
    assert (harness.folder / "runs/one/attempts/1/logs/driver.log").read_text() == "one-a1 prints\n"


def test_code_is_not_sent_where_all_nodes_have_the_same_release_unless_a_run_installs_its_own_packages(
    harness: ControllerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYSCRIBE_HOME", str(harness.folder / "home"))
    monkeypatch.setattr("jobs.service.controller.RELEASE", VERSION)
    LocalRecord(name="own", created_s=1.0, release=VERSION).write()
    packages = PackageStore(harness.folder / "packages")
    code = packages.put_own_code()
    installing = {**sample_run().config, "job": {"runtime_env": {"pip": ["jiwer"]}}}
    harness.submit("here", address="cluster://own", code=code)
    harness.submit("elsewhere", code=code)
    harness.submit("installing", address="cluster://own", code=code, config=installing)
    harness.submit("itself", address="cluster://own")
    harness.run_rounds(harness.controller())
    requests = {name.removesuffix("-a1"): job.request for name, job in harness.cluster.jobs.items()}
    sent = {name: request.runtime_env.get("py_modules", []) for name, request in requests.items()}
    zipped = [str(packages.path(code))]
    assert sent == {"here": [], "elsewhere": zipped, "installing": zipped, "itself": []}
    starts = {name: request.entrypoint.split(" --attempt")[0] for name, request in requests.items()}
    own = "python -P -m rayscribe.trainers.main"
    assert starts == {"here": own, "elsewhere": own, "installing": own, "itself": "python task.py"}


def test_a_lost_node_is_retried_until_it_goes_well(harness: ControllerHarness) -> None:
    harness.submit("one", max_retries=0)
    harness.cluster.ends = {"one-a1": LOST_NODE, "one-a2": LOST_NODE}
    harness.run_rounds(harness.controller())
    run = harness.ledger.run("one")
    assert (run.state, run.attempt) == (RunState.SUCCEEDED, 3)
    assert [item.cause for item in harness.ledger.attempts("one")] == [
        Cause.NODE_LOST,
        Cause.NODE_LOST,
        Cause.SUCCEEDED,
    ]
    assert RunState.PREEMPTED in {event.state for event in harness.ledger.events("one")}
    harness.check_history()


def test_why_an_environment_was_not_made_is_the_reason_while_ray_tries_again(harness: ControllerHarness) -> None:
    harness.submit("one")
    harness.cluster.lasts = {"one-a1": 3}
    harness.cluster.setup_logs = {"one-a1": "Last 50 lines of stdout:\n    x\n    ERROR: no such package\n2026 Run\n"}
    harness.run_rounds(harness.controller(), until=lambda: harness.cluster.jobs["one-a1"].reads == 2)
    run = harness.ledger.run("one")
    assert run.state == RunState.SETTING_UP
    assert run.reason == "Ray sets up the runtime environment, again after: ERROR: no such package"


def test_a_fault_in_the_config_is_not_tried_again_and_gives_its_exit_code(harness: ControllerHarness) -> None:
    harness.submit("one")
    harness.cluster.ends = {"one-a1": CONFIG_ERROR}
    harness.run_rounds(harness.controller())
    run = harness.ledger.run("one")
    assert (run.state, run.exit_code, run.attempt) == (RunState.FAILED, 2, 1)


def test_a_run_is_stopped_while_it_waits_while_it_is_handed_over_and_while_it_runs(harness: ControllerHarness) -> None:
    harness.submit("one")
    harness.submit("two")
    harness.submit("three")
    harness.cluster.lasts = {"two-a1": 1000, "three-a1": 1000}
    assert harness.ledger.requests.request_stop("one", by="ana", at_s=harness.now_s).state == RunState.STOPPED
    harness.cluster.down = True
    controller = harness.controller()
    controller.round()
    harness.cluster.down = False
    harness.run_rounds(controller, lambda: len(harness.cluster.jobs) == 2)
    for name in ("two", "three"):
        harness.ledger.requests.request_stop(name, by="ana", at_s=harness.now_s)
    harness.run_rounds(controller)
    for name in ("two", "three"):
        run = harness.ledger.run(name)
        assert (run.state, run.exit_code) == (RunState.STOPPED, 143)
        assert run.reason == "stopped; no checkpoint was made"
    assert "one-a1" not in harness.cluster.jobs


def test_a_stop_that_comes_while_ray_is_being_asked_still_stops_what_ray_took(harness: ControllerHarness) -> None:
    harness.submit("one")
    harness.cluster.lasts = {"one-a1": 1000}

    def stop_in_between(point: str) -> None:
        if point == "ray.submit:after":
            harness.ledger.requests.request_stop("one", by="ana", at_s=harness.now_s)

    harness.run_rounds(harness.controller(stop_in_between))
    assert harness.ledger.run("one").state == RunState.STOPPED
    assert harness.cluster.jobs["one-a1"].stopped
    harness.check_history()


def test_a_run_that_fails_while_it_is_stopped_is_stopped_and_its_attempt_says_how_it_ended(
    harness: ControllerHarness,
) -> None:
    harness.submit("one")
    harness.cluster.ends = {"one-a1": CONFIG_ERROR}

    def stop_in_between(point: str) -> None:
        if point == "logs.archive:before":
            harness.ledger.requests.request_stop("one", by="ana", at_s=harness.now_s)

    harness.run_rounds(harness.controller(stop_in_between))
    run = harness.ledger.run("one")
    assert (run.state, run.exit_code) == (RunState.STOPPED, 143)
    assert harness.ledger.attempts("one")[0].exit_code == 2


def test_a_cluster_that_forgot_the_job_was_started_anew(harness: ControllerHarness) -> None:
    harness.submit("one")
    harness.cluster.lasts = {"one-a1": 1000}
    controller = harness.controller()
    harness.run_rounds(controller, lambda: harness.ledger.attempts("one")[0].submitted_s is not None)
    harness.cluster.jobs.clear()
    harness.run_rounds(controller)
    assert [item.cause for item in harness.ledger.attempts("one")] == [Cause.CLUSTER_LOST, Cause.SUCCEEDED]


def test_a_silent_cluster_ends_nothing_and_is_told_once(harness: ControllerHarness) -> None:
    harness.submit("one")
    harness.cluster.lasts = {"one-a1": 3}
    controller = harness.controller()
    harness.run_rounds(controller, lambda: bool(harness.cluster.jobs))
    harness.cluster.down = True
    for _ in range(5):
        controller.round()
        harness.now_s += 60.0
    run = harness.ledger.run("one")
    assert run.state.holding
    assert run.reason == "http://fake: no response; retrying"
    harness.cluster.down = False
    harness.run_rounds(controller)
    assert harness.ledger.run("one").state == RunState.SUCCEEDED
    assert [event.cause for event in harness.ledger.events("one")].count("cluster_unreachable") == 1


def test_one_run_s_trouble_is_its_own_whatever_it_is(
    harness: ControllerHarness, caplog: pytest.LogCaptureFixture
) -> None:
    harness.submit("odd")
    harness.submit("other")
    status = harness.folder / "runs/odd/attempts/1/status.json"
    status.parent.mkdir(parents=True)
    status.write_text('{"phase": ' + "[" * 100_000)
    journal = harness.folder / "runs/other/journal/00000001.json"
    journal.parent.mkdir(parents=True)
    journal.write_text('{"kind": "opened", "attempt": "one"}')
    harness.cluster.breaks = {"odd-a1"}
    for _ in range(3):
        harness.controller().round()
        harness.now_s += 60.0
    assert harness.ledger.run("other").state == RunState.SUCCEEDED
    assert (
        harness.ledger.run("odd").reason
        == "internal error of the service (TypeError), whose log has the details; retrying"
    )
    assert "Traceback" in caplog.text
    harness.cluster.breaks.clear()
    harness.run_rounds(harness.controller())
    assert harness.ledger.run("odd").state == RunState.SUCCEEDED
    harness.check_history()


def test_a_run_on_a_cluster_that_is_gone_is_stopped_once_that_was_tried_long_enough(harness: ControllerHarness) -> None:
    harness.submit("one")
    harness.cluster.lasts = {"one-a1": 1000}
    controller = harness.controller()
    harness.run_rounds(controller, lambda: bool(harness.cluster.jobs))
    harness.cluster.down = True
    harness.ledger.requests.request_stop("one", by="ana", at_s=harness.now_s)
    controller.round()
    assert harness.ledger.run("one").reason == (
        "stopping; http://fake: no response; retrying until 1970-01-12 14:00:36 UTC"
    )
    harness.now_s += stop_grace_s(harness.ledger.run("one").config, None) + ABANDON_AFTER_S - 1.0
    controller.round()
    assert harness.ledger.run("one").state.holding
    harness.now_s += 1.0
    controller.round()
    run = harness.ledger.run("one")
    assert (run.state, run.exit_code) == (RunState.STOPPED, 143)
    assert run.reason == (
        "stopped; no checkpoint was made; its cluster did not respond, so its job may still be running there: "
        "http://fake: no response"
    )
    harness.check_history()


def test_a_round_that_submits_nothing_still_records_how_jobs_have_ended(harness: ControllerHarness) -> None:
    harness.submit("one")
    controller = harness.controller()
    controller.round()
    harness.submit("interrupted")
    harness.cluster.takes_no_jobs = True
    controller.round()
    harness.cluster.takes_no_jobs = False
    controller.round(submit=False)
    assert harness.ledger.run("one").state == RunState.SUCCEEDED
    assert list(harness.cluster.jobs) == ["one-a1"]


def test_a_run_whose_cluster_was_taken_down_is_tried_again_on_the_next_one(harness: ControllerHarness) -> None:
    harness.submit("one")
    harness.cluster.lasts = {"one-a1": 1000}
    controller = harness.controller()
    harness.run_rounds(controller, lambda: harness.ledger.attempts("one")[0].submitted_s is not None)
    harness.cluster.gone = True
    controller.round()
    (attempt,) = harness.ledger.attempts("one")
    assert attempt.cause == Cause.CLUSTER_LOST
    assert not harness.ledger.run("one").state.holding
    harness.cluster.gone = False
    harness.run_rounds(controller)
    assert [item.cause for item in harness.ledger.attempts("one")] == [Cause.CLUSTER_LOST, Cause.SUCCEEDED]
    harness.check_history()


def test_a_job_of_another_run_with_the_same_name_is_not_taken_for_ours(harness: ControllerHarness) -> None:
    harness.submit("one")
    harness.cluster.lasts = {"one-a1": 1000}
    controller = harness.controller()
    harness.run_rounds(controller, lambda: harness.ledger.attempts("one")[0].submitted_s is not None)
    request = harness.cluster.jobs["one-a1"].request
    harness.cluster.jobs["one-a1"].request = replace(request, metadata={**request.metadata, METADATA_UID: "another"})
    harness.run_rounds(controller)
    assert [item.cause for item in harness.ledger.attempts("one")] == [Cause.CLUSTER_LOST, Cause.SUCCEEDED]
    assert not harness.cluster.jobs["one-a1"].stopped


def test_an_attempt_gets_a_number_that_nobody_has_used_in_the_run_folder(harness: ControllerHarness) -> None:
    harness.submit("one")
    folder = RunFolder(open_storage(str(harness.folder / "runs/one")))
    for _ in range(3):
        Driver.open(folder, Journal(folder), None, lambda state: {"id": "e"})
    harness.run_rounds(harness.controller())
    assert [item.submission_id for item in harness.ledger.attempts("one")] == ["one-a4"]
    assert harness.ledger.run("one").state == RunState.SUCCEEDED


def test_a_run_that_is_stopped_before_it_is_refused_stays_stopped(harness: ControllerHarness) -> None:
    waiting = harness.submit("first")
    stopped = harness.ledger.requests.request_stop("first", by="ana", at_s=harness.now_s)
    assert refused(stopped, reason="depends on run nobody", now_s=harness.now_s) is None
    change = refused(waiting, reason="depends on run nobody", now_s=harness.now_s)
    assert change is not None
    lease = harness.ledger.lease("test", ttl_s=0.0)
    assert lease.try_hold()
    with pytest.raises(RunChangedError):
        write(harness.ledger, lease, change)
    assert harness.ledger.run("first").state == RunState.STOPPED


def test_a_log_that_could_not_be_kept_at_an_attempt_s_end_is_kept_later(
    harness: ControllerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.submit("one")
    controller = harness.controller()
    with monkeypatch.context() as broken:

        def refuses(*args: object) -> None:
            raise StorageError("the storage does not respond")

        broken.setattr(RunFolders, "write_driver_log", refuses)
        harness.run_rounds(controller)
    log = harness.folder / "runs/one/attempts/1/logs/driver.log"
    assert (harness.ledger.run("one").state, log.exists()) == (RunState.SUCCEEDED, False)
    controller.round()
    assert log.read_text() == "one-a1 prints\n"
    log.unlink()
    harness.now_s += 60.0
    controller.round()
    assert not log.exists(), "once is enough"


def test_a_storage_that_stalls_changes_neither_state_nor_progress_nor_what_counts(
    harness: ControllerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.submit("one")
    harness.cluster.lasts = {"one-a1": 9}
    status = harness.folder / "runs/one" / status_key(1)
    status.parent.mkdir(parents=True)
    status.write_text('{"phase": "TRAINING", "step": 7, "max_steps": 9, "at_s": 1000000}')
    controller = harness.controller()
    harness.run_rounds(controller, lambda: harness.ledger.run("one").state == RunState.TRAINING)
    before, events = harness.ledger.run("one").progress, len(harness.ledger.events("one"))
    with monkeypatch.context() as stalled:

        def hangs(*args: object) -> None:
            raise StorageError("no response in 10 s")

        for name in ("read_status", "list_checkpoints"):
            stalled.setattr(run_folders, name, hangs)
        controller.round()
        run = harness.ledger.run("one")
        assert (run.state, run.progress) == (RunState.TRAINING, before)
        assert "the service cannot read" in run.reason
        assert len(harness.ledger.events("one")) == events
    status.unlink()
    controller.round()
    assert harness.ledger.run("one").progress == before, "a storage that is not mounted looks empty"


def test_a_slow_storage_has_a_share_of_each_round_and_all_of_its_runs_have_their_turn(
    harness: ControllerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = [harness.submit(f"slow-{number}", run_folder=f"/slow/{number}").id for number in range(3)]
    harness.submit("other")
    harness.cluster.cpus = 100.0
    harness.cluster.lasts = {f"{name}-a1": 99 for name in (*slow, "other")}
    controller = harness.controller()
    controller.round()
    elapsed, read = [0.0], []

    def read_status(folder: RunFolder, attempt: int) -> None:
        read.append(folder.name)
        elapsed[0] += 7.0 if folder.url.startswith("/slow") else 0.0

    monkeypatch.setattr(run_folders, "read_status", read_status)
    monkeypatch.setattr(controller._folders, "_clock", lambda: elapsed[0])
    seen: set[str] = set()
    for _ in range(4):
        read.clear()
        controller.round()
        assert len(read) == 2 and "other" in read
        seen.update(read)
    assert seen == {"0", "1", "2", "other"}


def test_a_retry_that_has_written_nothing_yet_is_not_said_to_be_unreadable(harness: ControllerHarness) -> None:
    harness.submit("one")
    harness.cluster.ends, harness.cluster.lasts = {"one-a1": LOST_NODE}, {"one-a1": 2, "one-a2": 9}
    status = harness.folder / "runs/one" / status_key(1)
    status.parent.mkdir(parents=True)
    status.write_text('{"phase": "TRAINING", "step": 7, "max_steps": 9, "at_s": 1000000, "checkpoint_s": 3}')
    controller = harness.controller()
    harness.run_rounds(controller, lambda: harness.ledger.run("one").reason == "the entrypoint has started")
    run = harness.ledger.run("one")
    assert run.attempt == 2 and run.progress is not None and run.progress.checkpoint_s == 3


@pytest.mark.parametrize("knows", ["the checkpoint", "that one was stored"])
def test_a_retry_is_told_of_the_checkpoint_that_the_service_no_longer_sees(
    harness: ControllerHarness, tmp_path: Path, knows: str
) -> None:
    run = harness.submit("one")
    harness.cluster.ends, harness.cluster.lasts = {"one-a1": LOST_NODE, "one-a2": LOST_NODE}, {"one-a1": 2}
    folder = harness.folder / "runs/one"
    (folder / status_key(1)).parent.mkdir(parents=True)
    (folder / status_key(1)).write_text('{"phase": "TRAINING", "step": 7, "max_steps": 9, "checkpoint_s": 3}')
    controller = harness.controller()
    harness.run_rounds(controller, lambda: harness.ledger.run("one").state == RunState.TRAINING)
    if knows == "the checkpoint":
        group = first_group(RunFolder(open_storage(run.run_folder)))
        upload_staged(staged(tmp_path / "staged", 6), group, RetentionPolicy(None, "eval_wer"))
    else:
        shutil.rmtree(folder)
    harness.run_rounds(controller, lambda: harness.ledger.run("one").state.waiting)
    shutil.rmtree(folder, ignore_errors=True)
    harness.run_rounds(controller)
    told = [harness.cluster.jobs[f"one-a{number}"].request.runtime_env["env_vars"] for number in (1, 2, 3)]
    expected = "checkpoint-6" if knows == "the checkpoint" else "a checkpoint"
    assert [each.get(CHECKPOINT_VARIABLE) for each in told] == [None, expected, expected]
    texts = [event.text for event in harness.ledger.events("one") if event.cause == "admitted"]
    assert texts[1:] == [f"attempt {number} starts from {expected}" for number in (2, 3)]


def test_a_resumed_run_begins_its_count_of_retries_anew(harness: ControllerHarness) -> None:
    harness.submit("one", max_retries=1)
    worker = ("FAILED", 8, "a worker died", "JOB_ENTRYPOINT_COMMAND_ERROR")
    harness.cluster.ends = {f"one-a{number}": worker for number in (1, 2, 3)}
    harness.run_rounds(harness.controller())
    assert (harness.ledger.run("one").state, harness.ledger.run("one").attempt) == (RunState.FAILED, 2)
    harness.ledger.requests.reopen("one", by="ana", at_s=harness.now_s)
    harness.run_rounds(harness.controller())
    assert (harness.ledger.run("one").state, harness.ledger.run("one").attempt) == (RunState.SUCCEEDED, 4)


def test_what_counts_as_a_retry_does_not_depend_on_clocks(harness: ControllerHarness) -> None:
    harness.submit("one", max_retries=1, submitted_s=harness.now_s + 86_400, queued_s=harness.now_s + 86_400)
    worker = ("FAILED", 8, "a worker died", "JOB_ENTRYPOINT_COMMAND_ERROR")
    harness.cluster.ends = {f"one-a{number}": worker for number in range(1, 10)}
    harness.run_rounds(harness.controller())
    assert (harness.ledger.run("one").state, harness.ledger.run("one").attempt) == (RunState.FAILED, 2)


def test_a_package_that_is_gone_ends_the_run_with_the_fix(harness: ControllerHarness) -> None:
    harness.submit("one", package="cd" * 32)
    harness.run_rounds(harness.controller())
    run = harness.ledger.run("one")
    assert run.state == RunState.FAILED
    assert f"package {'cd' * 32} is no longer in the service's store: submit the run again" in run.reason


def test_a_run_waits_for_those_it_depends_on_and_fails_with_them(harness: ControllerHarness) -> None:
    harness.submit("first")
    harness.submit("second", depends_on=["first"])
    harness.submit("bad")
    harness.submit("after-bad", depends_on=["bad"])
    harness.cluster.ends = {"bad-a1": CONFIG_ERROR}
    harness.run_rounds(harness.controller())
    states = {run.id: run.state for run in harness.ledger.runs(limit=10).runs}
    assert states == {
        "first": RunState.SUCCEEDED,
        "second": RunState.SUCCEEDED,
        "bad": RunState.FAILED,
        "after-bad": RunState.FAILED,
    }
    ended = {event.run_id: event.at_s for event in harness.ledger.events(None) if event.cause == "ended"}
    admitted = {event.run_id: event.at_s for event in harness.ledger.events(None) if event.cause == "admitted"}
    assert admitted["second"] >= ended["first"]
    assert "bad" in harness.ledger.run("after-bad").reason


def test_a_run_is_stopped_at_once_where_its_cluster_takes_no_jobs(harness: ControllerHarness) -> None:
    harness.submit("one")
    harness.cluster.takes_no_jobs = True
    controller = harness.controller()
    controller.round()
    assert harness.ledger.run("one").reason == "http://fake accepts no jobs; retrying"
    harness.ledger.requests.request_stop("one", by="ana", at_s=harness.now_s)
    controller.round()
    run = harness.ledger.run("one")
    assert run.state == RunState.STOPPED
    assert "none of its jobs is running: http://fake accepts no jobs" in run.reason
