"""What happens to hosts during a training, and that it ends with the weights of an undisturbed one."""

from collections.abc import Iterator

import pytest

from jobs.lifecycle import RunState
from jobs.model import Cause
from tests.hosts.ray_hosts import RayHosts
from tests.hosts.runs import CALM, HostRuns, check_same

DURING = 13


@pytest.fixture(scope="module")
def runs(hosts_without_ray: RayHosts, calm: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostRuns]:
    """A service of these tests' own, beside an undisturbed run."""
    assert calm == CALM
    made = HostRuns(hosts_without_ray, tmp_path_factory.mktemp("runs"))
    yield made
    made.close()


def ended_well(hosts: RayHosts, runs: HostRuns, name: str) -> list[Cause | None]:
    """How the attempts of a run ended that ends as the undisturbed one did."""
    run = runs.drive.until_ended(name)
    assert run.state == RunState.SUCCEEDED, run.reason
    check_same(hosts, name, CALM)
    return runs.drive.causes(name)


def test_a_worker_host_whose_processes_are_killed(hosts: RayHosts, runs: HostRuns) -> None:
    runs.submit("host-killed")
    runs.until_step("host-killed", DURING)
    assert hosts.workers[0].kill() > 0
    assert ended_well(hosts, runs, "host-killed") == [Cause.NODE_LOST, Cause.SUCCEEDED]


def test_a_host_cut_off_from_the_network_and_back(hosts: RayHosts, runs: HostRuns) -> None:
    runs.submit("cut-off")
    runs.until_step("cut-off", DURING)
    with hosts.workers[0].unplugged():
        run = runs.until("cut-off", lambda run: not run.state.holding, "end of the attempt")
        assert "a node was lost" in run.reason
    assert ended_well(hosts, runs, "cut-off") == [Cause.NODE_LOST, Cause.SUCCEEDED]


def test_the_driver_is_killed(hosts: RayHosts, runs: HostRuns) -> None:
    runs.submit("driver-killed")
    runs.until_step("driver-killed", DURING)
    assert hosts.head.kill("task.py") > 0
    assert ended_well(hosts, runs, "driver-killed") == [Cause.DRIVER_KILLED, Cause.SUCCEEDED]
