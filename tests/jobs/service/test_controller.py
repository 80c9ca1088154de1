"""The controller, at the seam where Ray begins: retries, stops, lost clusters, and a death at every single point."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from jobs.clusters.fake_cluster import FakeCluster
from jobs.ledger import Changed, Ledger
from jobs.lifecycle import RunState
from jobs.model import Cause
from jobs.service.controller import ABANDON_AFTER_S, Controller
from jobs.service.run_changes import refused, write
from jobs.service.run_folders import RunFolders
from jobs.submission.ray_request import METADATA_UID
from runtime_env.package import pack
from runtime_env.tree import list_tree
from tests.jobs.service.place import MAX_ROUNDS, Place
from trainers.errors import StorageError
from trainers.run_folder.fencing import Driver
from trainers.run_folder.journal import Journal
from trainers.run_folder.layout import RunFolder
from trainers.storage import open_storage

LOST_NODE = ("FAILED", 11, "the node of a worker was lost", "JOB_ENTRYPOINT_COMMAND_ERROR")
CONFIG_FAULT = ("FAILED", 2, "error: 1 fault", "JOB_ENTRYPOINT_COMMAND_ERROR")


class Death(BaseException):
    """Ends the controller as a SIGKILL would: nothing catches it."""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """An empty ledger and a cluster with eight CPUs."""
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "task.py").write_text("print('hello')\n")
    package = pack(list_tree(tree, []), tmp_path / "packages")
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}")
    yield Place(tmp_path, ledger, FakeCluster(), package.sha256)
    ledger.close()


def test_a_run_goes_from_the_queue_to_its_end(place: Place) -> None:
    place.submit("one")
    place.drive(place.controller())
    run = place.ledger.run("one")
    assert (run.state, run.exit_code, run.attempt) == (RunState.SUCCEEDED, 0, 1)
    causes = [event.cause for event in place.ledger.events("one")]
    assert causes == ["submitted", "admitted", "ray_submitted", "ended"]
    assert (place.folder / "runs/one/attempts/1/logs/driver.log").read_text() == "one-a1 prints\n"


def test_a_lost_node_is_retried_until_it_goes_well(place: Place) -> None:
    place.submit("one", max_retries=0)
    place.cluster.ends = {"one-a1": LOST_NODE, "one-a2": LOST_NODE}
    place.drive(place.controller())
    run = place.ledger.run("one")
    assert (run.state, run.attempt) == (RunState.SUCCEEDED, 3)
    assert [item.cause for item in place.ledger.attempts("one")] == [Cause.NODE_LOST, Cause.NODE_LOST, Cause.SUCCEEDED]
    assert RunState.PREEMPTED in {event.state for event in place.ledger.events("one")}
    place.check_story()


def test_a_fault_in_the_config_is_not_tried_again_and_gives_its_exit_code(place: Place) -> None:
    place.submit("one")
    place.cluster.ends = {"one-a1": CONFIG_FAULT}
    place.drive(place.controller())
    run = place.ledger.run("one")
    assert (run.state, run.exit_code, run.attempt) == (RunState.FAILED, 2, 1)


def test_a_run_is_stopped_while_it_waits_while_it_is_handed_over_and_while_it_runs(place: Place) -> None:
    place.submit("one")
    place.submit("two")
    place.submit("three")
    place.cluster.lasts = {"two-a1": 1000, "three-a1": 1000}
    assert place.ledger.requests.request_stop("one", by="ana", at_s=place.now_s).state == RunState.STOPPED
    place.cluster.down = True
    controller = place.controller()
    controller.round()
    place.cluster.down = False
    place.drive(controller, lambda: len(place.cluster.jobs) == 2)
    for name in ("two", "three"):
        place.ledger.requests.request_stop(name, by="ana", at_s=place.now_s)
    place.drive(controller)
    for name in ("two", "three"):
        run = place.ledger.run(name)
        assert (run.state, run.exit_code) == (RunState.STOPPED, 143)
        assert run.reason == "stopped; no checkpoint was made"
    assert "one-a1" not in place.cluster.jobs


def test_a_stop_that_comes_while_ray_is_being_asked_still_stops_what_ray_took(place: Place) -> None:
    place.submit("one")
    place.cluster.lasts = {"one-a1": 1000}

    def stop_in_between(point: str) -> None:
        if point == "ray.submit:after":
            place.ledger.requests.request_stop("one", by="ana", at_s=place.now_s)

    place.drive(place.controller(stop_in_between))
    assert place.ledger.run("one").state == RunState.STOPPED
    assert place.cluster.jobs["one-a1"].stopped
    place.check_story()


def test_a_run_that_fails_while_it_is_stopped_is_stopped_and_its_attempt_says_how_it_ended(place: Place) -> None:
    place.submit("one")
    place.cluster.ends = {"one-a1": CONFIG_FAULT}

    def stop_in_between(point: str) -> None:
        if point == "logs.archive:before":
            place.ledger.requests.request_stop("one", by="ana", at_s=place.now_s)

    place.drive(place.controller(stop_in_between))
    run = place.ledger.run("one")
    assert (run.state, run.exit_code) == (RunState.STOPPED, 143)
    assert place.ledger.attempts("one")[0].exit_code == 2


def test_a_cluster_that_forgot_the_job_was_started_anew(place: Place) -> None:
    place.submit("one")
    place.cluster.lasts = {"one-a1": 1000}
    controller = place.controller()
    place.drive(controller, lambda: place.ledger.attempts("one")[0].submitted_s is not None)
    place.cluster.jobs.clear()
    place.drive(controller)
    assert [item.cause for item in place.ledger.attempts("one")] == [Cause.CLUSTER_LOST, Cause.SUCCEEDED]


def test_a_silent_cluster_ends_nothing_and_is_told_once(place: Place) -> None:
    place.submit("one")
    place.cluster.lasts = {"one-a1": 3}
    controller = place.controller()
    place.drive(controller, lambda: bool(place.cluster.jobs))
    place.cluster.down = True
    for _ in range(5):
        controller.round()
        place.now_s += 60.0
    run = place.ledger.run("one")
    assert run.state.holding
    assert run.reason == "http://fake: no response; retrying"
    place.cluster.down = False
    place.drive(controller)
    assert place.ledger.run("one").state == RunState.SUCCEEDED
    assert [event.cause for event in place.ledger.events("one")].count("cluster_unreachable") == 1


def test_one_run_s_trouble_is_its_own_whatever_it_is(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    place.submit("odd")
    place.submit("other")
    status = place.folder / "runs/odd/attempts/1/status.json"
    status.parent.mkdir(parents=True)
    status.write_text('{"phase": ' + "[" * 100_000)
    journal = place.folder / "runs/other/journal/00000001.json"
    journal.parent.mkdir(parents=True)
    journal.write_text('{"kind": "opened", "attempt": "one"}')
    place.cluster.breaks = {"odd-a1"}
    for _ in range(3):
        place.controller().round()
        place.now_s += 60.0
    assert place.ledger.run("other").state == RunState.SUCCEEDED
    assert (
        place.ledger.run("odd").reason
        == "internal error of the service (TypeError), whose log has the details; retrying"
    )
    assert "Traceback" in caplog.text
    place.cluster.breaks.clear()
    place.drive(place.controller())
    assert place.ledger.run("odd").state == RunState.SUCCEEDED
    place.check_story()


def test_a_run_on_a_cluster_that_is_gone_is_stopped_once_that_was_tried_long_enough(place: Place) -> None:
    place.submit("one")
    place.cluster.lasts = {"one-a1": 1000}
    controller = place.controller()
    place.drive(controller, lambda: bool(place.cluster.jobs))
    place.cluster.down = True
    place.ledger.requests.request_stop("one", by="ana", at_s=place.now_s)
    controller.round()
    assert place.ledger.run("one").reason == (
        "stopping; http://fake: no response; retrying until 1970-01-12 13:57:40 UTC"
    )
    place.now_s += ABANDON_AFTER_S - 1.0
    controller.round()
    assert place.ledger.run("one").state.holding
    place.now_s += 1.0
    controller.round()
    run = place.ledger.run("one")
    assert (run.state, run.exit_code) == (RunState.STOPPED, 143)
    assert run.reason == (
        "stopped; no checkpoint was made; its cluster could not be reached, so its job may still be running there: "
        "http://fake: no response"
    )
    place.check_story()


def test_a_job_of_another_run_with_the_same_name_is_not_taken_for_ours(place: Place) -> None:
    place.submit("one")
    place.cluster.lasts = {"one-a1": 1000}
    controller = place.controller()
    place.drive(controller, lambda: place.ledger.attempts("one")[0].submitted_s is not None)
    request = place.cluster.jobs["one-a1"].request
    place.cluster.jobs["one-a1"].request = replace(request, metadata={**request.metadata, METADATA_UID: "another"})
    place.drive(controller)
    assert [item.cause for item in place.ledger.attempts("one")] == [Cause.CLUSTER_LOST, Cause.SUCCEEDED]
    assert not place.cluster.jobs["one-a1"].stopped


def test_an_attempt_gets_a_number_that_nobody_has_used_in_the_run_folder(place: Place) -> None:
    place.submit("one")
    folder = RunFolder(open_storage(str(place.folder / "runs/one")))
    for _ in range(3):
        Driver.open(folder, Journal(folder), None, lambda state: {"id": "e"})
    place.drive(place.controller())
    assert [item.submission_id for item in place.ledger.attempts("one")] == ["one-a4"]
    assert place.ledger.run("one").state == RunState.SUCCEEDED


def test_a_run_that_is_stopped_before_it_is_refused_stays_stopped(place: Place) -> None:
    waiting = place.submit("first")
    stopped = place.ledger.requests.request_stop("first", by="ana", at_s=place.now_s)
    assert refused(stopped, reason="depends on run nobody", now_s=place.now_s) is None
    change = refused(waiting, reason="depends on run nobody", now_s=place.now_s)
    assert change is not None
    lease = place.ledger.lease("test", ttl_s=0.0)
    assert lease.try_hold()
    with pytest.raises(Changed):
        write(place.ledger, lease, change)
    assert place.ledger.run("first").state == RunState.STOPPED


def test_a_log_that_could_not_be_kept_at_an_attempt_s_end_is_kept_later(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.submit("one")
    controller = place.controller()
    with monkeypatch.context() as broken:

        def refuses(*args: object) -> None:
            raise StorageError("the storage does not respond")

        broken.setattr(RunFolders, "write_driver_log", refuses)
        place.drive(controller)
    log = place.folder / "runs/one/attempts/1/logs/driver.log"
    assert (place.ledger.run("one").state, log.exists()) == (RunState.SUCCEEDED, False)
    controller.round()
    assert log.read_text() == "one-a1 prints\n"
    log.unlink()
    place.now_s += 60.0
    controller.round()
    assert not log.exists(), "once is enough"


def test_a_resumed_run_begins_its_count_of_retries_anew(place: Place) -> None:
    place.submit("one", max_retries=1)
    worker = ("FAILED", 8, "a worker died", "JOB_ENTRYPOINT_COMMAND_ERROR")
    place.cluster.ends = {f"one-a{number}": worker for number in (1, 2, 3)}
    place.drive(place.controller())
    assert (place.ledger.run("one").state, place.ledger.run("one").attempt) == (RunState.FAILED, 2)
    place.ledger.requests.reopen("one", by="ana", at_s=place.now_s)
    place.drive(place.controller())
    assert (place.ledger.run("one").state, place.ledger.run("one").attempt) == (RunState.SUCCEEDED, 4)


def test_what_counts_as_a_retry_does_not_depend_on_clocks(place: Place) -> None:
    place.submit("one", max_retries=1, submitted_s=place.now_s + 86_400, queued_s=place.now_s + 86_400)
    worker = ("FAILED", 8, "a worker died", "JOB_ENTRYPOINT_COMMAND_ERROR")
    place.cluster.ends = {f"one-a{number}": worker for number in range(1, 10)}
    place.drive(place.controller())
    assert (place.ledger.run("one").state, place.ledger.run("one").attempt) == (RunState.FAILED, 2)


def test_a_package_that_is_gone_ends_the_run_with_the_fix(place: Place) -> None:
    place.submit("one", package="cd" * 32)
    place.drive(place.controller())
    run = place.ledger.run("one")
    assert run.state == RunState.FAILED
    assert f"package {'cd' * 32} is no longer in the service's store: submit the run again" in run.reason


def test_a_run_waits_for_those_it_depends_on_and_fails_with_them(place: Place) -> None:
    place.submit("first")
    place.submit("second", depends_on=["first"])
    place.submit("bad")
    place.submit("after-bad", depends_on=["bad"])
    place.cluster.ends = {"bad-a1": CONFIG_FAULT}
    place.drive(place.controller())
    states = {run.id: run.state for run in place.ledger.runs(limit=10).runs}
    assert states == {
        "first": RunState.SUCCEEDED,
        "second": RunState.SUCCEEDED,
        "bad": RunState.FAILED,
        "after-bad": RunState.FAILED,
    }
    ended = {event.run_id: event.at_s for event in place.ledger.events(None) if event.cause == "ended"}
    admitted = {event.run_id: event.at_s for event in place.ledger.events(None) if event.cause == "admitted"}
    assert admitted["second"] >= ended["first"]
    assert "bad" in place.ledger.run("after-bad").reason


def test_a_controller_that_dies_at_any_point_is_continued_without_loss_or_double(place: Place) -> None:
    deaths: Counter[str] = Counter()
    for number in range(MAX_ROUNDS):
        died = _with_one_death(place, number)
        if died is None:
            break
        deaths[died] += 1
    points = {"ledger.admit", "ray.submit", "logs.archive", "ledger.end", "ray.stop"}
    assert {f"{point}:{side}" for point in points for side in ("before", "after")} <= set(deaths)
    assert "ledger.submitted:after" in deaths


def _with_one_death(place: Place, after: int) -> str | None:
    """Three runs, one of them stopped and one retried, and a controller that dies at its n-th point."""
    names = [f"r{after}-{letter}" for letter in "abc"]
    for name in names:
        place.submit(name)
    place.cluster.ends[f"{names[1]}-a1"] = LOST_NODE
    place.cluster.lasts[f"{names[2]}-a1"] = 1000
    passed, died = 0, []

    def die(point: str) -> None:
        nonlocal passed
        passed += 1
        if passed > after:
            died.append(point)
            raise Death

    def drive(controller: Controller) -> None:
        place.drive(controller, lambda: not place.ledger.run(names[2]).state.waiting)
        place.ledger.requests.request_stop(names[2], by="ana", at_s=place.now_s)
        place.drive(controller)

    try:
        drive(place.controller(die))
    except Death:
        drive(place.controller())
    states = [place.ledger.run(name).state for name in names]
    assert states == [RunState.SUCCEEDED, RunState.SUCCEEDED, RunState.STOPPED]
    place.check_story()
    assert all(place.cluster.submits.count(job) <= 2 for job in place.cluster.jobs)
    return died[0] if died else None
