"""Each way in which an attempt can end, made for real on a real Ray, and what the service makes of it."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from jobs.clusters.registry import Clusters
from jobs.errors import ClusterError
from jobs.model import Cause, LogPage, RunState
from jobs.scheduler.limits import QueuesConfig
from jobs.service.service import Service
from tests.integration.controller_driver import ControllerDriver
from tests.integration.driver_process import RayHead
from tests.integration.short_jobs import Workspace
from tests.integration.training_trees import write_training_tree


@pytest.fixture
def drive(ray_head: RayHead, tmp_path: Path) -> Iterator[ControllerDriver]:
    """A ledger, and a controller on the session's Ray."""
    workspace = Workspace(tmp_path, ray_head.dashboard, QueuesConfig())
    yield ControllerDriver(workspace)
    workspace.close()


def test_exit_codes_come_through_and_faults_of_the_user_are_not_retried(drive: ControllerDriver) -> None:
    drive.workspace.short("seven", exit=7)
    drive.workspace.short("two", exit=2)
    for name, code in (("seven", 7), ("two", 2)):
        run = drive.until_ended(name)
        assert (run.state, run.exit_code, run.attempt) == (RunState.FAILED, code, 1)
        assert drive.causes(name) == [Cause.USER_ERROR]


def test_an_unknown_exit_code_is_tried_once_more_and_given_up_when_it_comes_again(drive: ControllerDriver) -> None:
    drive.workspace.short("again", exit=42)
    drive.workspace.short("once", exit=42, failing_attempts=1)
    run = drive.until_ended("again")
    assert (run.state, run.exit_code, run.attempt) == (RunState.FAILED, 42, 2)
    assert drive.causes("again") == [Cause.ENTRYPOINT, Cause.ENTRYPOINT]
    assert drive.until_ended("once").state == RunState.SUCCEEDED


def test_a_killed_driver_is_retried(drive: ControllerDriver) -> None:
    drive.workspace.short("driver-killed", ms=600_000, slow_attempts=1)
    os.kill(drive.record("driver-killed")["pid"], signal.SIGKILL)
    assert drive.until_ended("driver-killed").state == RunState.SUCCEEDED
    assert drive.causes("driver-killed") == [Cause.DRIVER_KILLED, Cause.SUCCEEDED]


def test_logs_are_followed_without_gap_or_repeat_and_stay_when_the_cluster_has_gone(
    drive: ControllerDriver,
) -> None:
    drive.workspace.short("talks", lines=60)
    drive.until(lambda: drive.workspace.ledger.run("talks").attempt == 1, "attempt")
    pages: list[LogPage] = []

    def read() -> bool:
        # Each page by a service of its own, as after a lost connection.
        cursor = pages[-1].cursor if pages else None
        pages.append(drive.workspace.service.as_user("bo").logs("talks", source="driver", cursor=cursor))
        return pages[-1].ended

    drive.until(read, "end of the logs")
    lines = [line.text for page in pages for line in page.lines]
    said = [line for line in lines if line.startswith(("line ", "talks "))]
    assert said == ["talks attempt 1 begins", *(f"line {number}" for number in range(60)), "talks attempt 1 is done"]
    assert sum(bool(page.lines) for page in pages) > 2, "it came in pieces"
    workspace = drive.workspace
    later = Service(
        workspace.ledger,
        Clusters(connect=_unavailable),
        workspace.packages,
        workspace.queues,
        user="ana",
        addresses=[workspace.address],
    )
    page = later.logs("talks", source="driver")
    assert [line.text for line in page.lines] == lines
    assert page.ended


def _unavailable(address: str) -> NoReturn:
    raise ClusterError(f"{address} is not available")


@pytest.fixture(scope="module")
def calm(ray_head: RayHead, tones: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControllerDriver]:
    """A controller under which the run `calm` has trained undisturbed, from the folder `tree` of its workspace."""
    folder = tmp_path_factory.mktemp("calm")
    workspace = Workspace(folder, ray_head.dashboard, QueuesConfig())
    drive = ControllerDriver(workspace)
    tree = write_training_tree(folder / "tree", tones, str(folder / "prepared"))
    workspace.submit(tree, "calm", [], recipe="recipe.yaml")
    assert drive.until_ended("calm").state == RunState.SUCCEEDED
    yield drive
    workspace.close()


def _weights(drive: ControllerDriver, name: str) -> bytes:
    return (drive.workspace.storage / name / "model/model.safetensors").read_bytes()


@pytest.mark.core
def test_a_killed_worker_is_continued_to_the_weights_of_the_undisturbed_run(
    calm: ControllerDriver, ray_head: RayHead
) -> None:
    workspace = calm.workspace
    workspace.submit(workspace.folder / "tree", "killed", [], recipe="recipe.yaml")
    calm.until_step("killed", 13)
    ray_head.training_workers()[-1].send_signal(signal.SIGKILL)
    assert calm.until_ended("killed").state == RunState.SUCCEEDED
    assert calm.causes("killed") == [Cause.WORKER_LOST, Cause.SUCCEEDED]
    assert workspace.ledger.attempt("killed", 2).resume_from is not None
    assert _weights(calm, "killed") == _weights(calm, "calm")
    states = [event.state for event in workspace.ledger.events("calm")]
    assert RunState.TRAINING in states, "true status: not only RUNNING"
    rank = workspace.service.logs("killed", attempt=1, source="rank-1")
    assert rank.ended


@pytest.mark.long
def test_a_user_s_stop_is_continued_to_the_weights_of_the_undisturbed_run(calm: ControllerDriver) -> None:
    workspace = calm.workspace
    workspace.submit(workspace.folder / "tree", "stopped", [], recipe="recipe.yaml")
    calm.until_step("stopped", 13)
    workspace.service.stop("stopped")
    run = calm.until_ended("stopped")
    assert run.state == RunState.STOPPED
    assert run.reason.startswith("stopped; checkpoint checkpoint-"), run.reason
    workspace.service.resume("stopped")
    assert calm.until_ended("stopped").state == RunState.SUCCEEDED
    assert calm.causes("stopped") == [Cause.STOPPED, Cause.SUCCEEDED]
    assert _weights(calm, "stopped") == _weights(calm, "calm")
