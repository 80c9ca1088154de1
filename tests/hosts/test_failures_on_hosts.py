"""What happens to hosts during a training, and that it ends with the weights of an undisturbed one."""

import time
from collections.abc import Iterator

import pytest

from jobs.lifecycle import RunState
from jobs.model import Cause
from tests.hosts.ray_hosts import RayHosts
from tests.hosts.runs import CALM, HostRuns, ended_well

DURING = 13


@pytest.fixture(scope="module")
def runs(hosts_without_ray: RayHosts, calm: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostRuns]:
    """A service of these tests' own, beside an undisturbed run."""
    assert calm == CALM
    made = HostRuns(hosts_without_ray, tmp_path_factory.mktemp("runs"))
    yield made
    made.close()


def test_a_worker_host_whose_processes_are_killed(hosts: RayHosts, runs: HostRuns) -> None:
    runs.submit("host-killed")
    runs.until_step("host-killed", DURING)
    assert hosts.workers[0].kill() > 0
    assert ended_well(runs, "host-killed") == [Cause.NODE_LOST, Cause.SUCCEEDED]


def test_a_host_cut_off_from_the_network_and_back(hosts: RayHosts, runs: HostRuns) -> None:
    runs.submit("cut-off")
    runs.until_step("cut-off", DURING)
    with hosts.workers[0].unplugged():
        run = runs.until("cut-off", lambda run: not run.state.holding, "end of the attempt")
        assert "a node was lost" in run.reason
    assert ended_well(runs, "cut-off") == [Cause.NODE_LOST, Cause.SUCCEEDED]


def test_the_driver_is_killed(hosts: RayHosts, runs: HostRuns) -> None:
    runs.submit("driver-killed")
    runs.until_step("driver-killed", DURING)
    assert hosts.head.kill("task.py") > 0
    assert ended_well(runs, "driver-killed") == [Cause.DRIVER_KILLED, Cause.SUCCEEDED]


def test_the_head_is_killed_and_started_again(hosts: RayHosts, runs: HostRuns) -> None:
    runs.submit("head-killed")
    runs.until_step("head-killed", DURING)
    assert hosts.head.kill() > 0
    hosts.up()
    assert ended_well(runs, "head-killed") == [Cause.CLUSTER_LOST, Cause.SUCCEEDED]


def test_the_storage_is_not_reachable_for_half_a_minute(hosts: RayHosts, runs: HostRuns) -> None:
    runs.submit("no-storage")
    runs.until_step("no-storage", DURING)
    with hosts.storage.unplugged():
        time.sleep(30.0)
    assert set(ended_well(runs, "no-storage")[:-1]) <= {Cause.STORAGE}


def test_the_disk_of_a_worker_host_is_full(hosts: RayHosts, runs: HostRuns) -> None:
    runs.submit("disk-full", "job.max_retries=0")
    runs.until_step("disk-full", DURING)
    hosts.workers[1].fill_disk()
    try:
        run = runs.drive.until_ended("disk-full")
    finally:
        hosts.workers[1].free_disk()
    assert run.state == RunState.FAILED
    assert f"a disk of host {hosts.workers[1].name} is full" in run.reason
    assert "No space left on device" in run.reason
    runs.workspace.service.resume(run.id)
    assert ended_well(runs, "disk-full") == [Cause.STORAGE, Cause.SUCCEEDED]
