"""What happens to hosts during a training, and that it ends with the weights of an undisturbed one."""

import time
from collections.abc import Iterator

import pytest

from jobs.model import Cause, Run, RunState
from tests.hosts.network import Host
from tests.hosts.ray_hosts import RayHosts
from tests.hosts.recorded_runs import RecordedRuns
from tests.hosts.runs import CALM, SAVE_STEPS, ended_well
from trainers.errors import LostNodeError

DURING = 13


@pytest.fixture(scope="module")
def runs(hosts_without_ray: RayHosts, calm: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RecordedRuns]:
    """A service of these tests' own, next to an undisturbed run."""
    assert calm == CALM
    made = RecordedRuns(hosts_without_ray, tmp_path_factory.mktemp("runs"))
    yield made
    made.close()


def test_one_run_survives_a_killed_host_and_a_host_cut_off(hosts: RayHosts, runs: RecordedRuns) -> None:
    # The attempt could start its workers again, but those that are left do not hold them. Lost nodes are no retries.
    runs.submit("hit-twice", "scaling.resources_per_worker={CPU: 2}", "job.max_retries=0")
    runs.until_step("hit-twice", DURING)
    assert hosts.workers[0].kill() > 0
    runs.until_step("hit-twice", DURING + SAVE_STEPS)
    with hosts.workers[1].unplugged():
        run = runs.until("hit-twice", lambda run: run.state == RunState.PREEMPTED, "word of the lost node")
        assert "a node was lost" in run.reason
    runs.hurry()
    assert set(ended_well(runs, "hit-twice")[:-1]) == {Cause.NODE_LOST}


def test_a_worker_host_whose_processes_are_killed(hosts: RayHosts, runs: RecordedRuns) -> None:
    runs.submit("host-killed")
    runs.until_step("host-killed", DURING)
    assert hosts.workers[0].kill() > 0
    runs.hurry()
    # More than one where Ray, started again on the host, goes once more before the next attempt looks.
    assert set(ended_well(runs, "host-killed")[:-1]) == {Cause.NODE_LOST}


def test_a_host_cut_off_from_the_network_and_back(hosts: RayHosts, runs: RecordedRuns) -> None:
    # The attempt could start its workers again, but those that are left do not hold them.
    runs.submit("cut-off", "scaling.resources_per_worker={CPU: 2}", "run.max_failures=3", "job.max_retries=0")
    runs.until_step("cut-off", DURING)
    with hosts.workers[0].unplugged():
        run = runs.until("cut-off", lambda run: run.state == RunState.PREEMPTED, "word of the lost node")
        assert "a node was lost" in run.reason
        runs.drive.until(
            lambda: "but the cluster at" in runs.workspace.service.run(run.id).reason, "word of what is missing"
        )
    runs.hurry()
    assert set(ended_well(runs, "cut-off")[:-1]) == {Cause.NODE_LOST}
    first, *_, last = runs.workspace.ledger.attempts(run.id)
    assert first.exit_code == LostNodeError.exit_code
    assert last.resume_from is not None


def test_the_driver_is_killed(hosts: RayHosts, runs: RecordedRuns) -> None:
    runs.submit("driver-killed")
    runs.until_step("driver-killed", DURING)
    assert hosts.head.kill("task.py") > 0
    runs.hurry()
    assert ended_well(runs, "driver-killed") == [Cause.DRIVER_KILLED, Cause.SUCCEEDED]


def test_the_head_is_killed_and_started_again(hosts: RayHosts, runs: RecordedRuns) -> None:
    runs.submit("head-killed")
    runs.until_step("head-killed", DURING)
    assert hosts.kill_head() > 0
    hosts.up()
    runs.hurry()
    lost, *others = ended_well(runs, "head-killed")[:-1]
    assert lost == Cause.CLUSTER_LOST
    assert set(others) <= {Cause.NODE_LOST}


def test_the_storage_is_not_reachable_for_half_a_minute(hosts: RayHosts, runs: RecordedRuns) -> None:
    runs.submit("no-storage")
    runs.until_step("no-storage", DURING)
    with hosts.storage.unplugged():
        runs.hurry()
        time.sleep(30.0)
    assert set(ended_well(runs, "no-storage")[:-1]) <= {Cause.STORAGE}


def ended_on_full_disk(host: Host, runs: RecordedRuns, name: str) -> Run:
    """A run that has ended while a disk of a host stayed full, whatever was deleted there."""

    def ended() -> bool:
        host.fill_disk()
        return runs.workspace.ledger.run(name).state.ended

    try:
        runs.drive.until(ended, f"end of {name}")
    finally:
        host.free_disk()
    return runs.workspace.ledger.run(name)


def test_the_disk_of_a_worker_host_is_full(hosts: RayHosts, runs: RecordedRuns) -> None:
    runs.submit("disk-full", "job.max_retries=0")
    runs.until_step("disk-full", DURING)
    runs.hurry()
    run = ended_on_full_disk(hosts.workers[1], runs, "disk-full")
    assert run.state == RunState.FAILED
    assert f"a disk of host {hosts.workers[1].name} is full" in run.reason
    assert "No space left on device" in run.reason
    runs.workspace.service.resume(run.id)
    assert ended_well(runs, "disk-full") == [Cause.STORAGE, Cause.SUCCEEDED]
