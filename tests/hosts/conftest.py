"""One cluster over hosts for all tests of this folder."""

from collections.abc import Iterator

import pytest

from tests.hosts import network
from tests.hosts.ray_hosts import CLUSTER, RayHosts, ray_hosts
from tests.hosts.runs import CALM, RECIPE, write_tree
from tests.integration.training_trees import write_tones

FOLDER = "tests/hosts/"


def pytest_itemcollected(item: pytest.Item) -> None:
    """One process runs all that need hosts, on one network."""
    if "hosts_without_ray" not in getattr(item, "fixturenames", ()):
        return
    for marker in (pytest.mark.integration, pytest.mark.long, pytest.mark.system, pytest.mark.timeout(1800)):
        item.add_marker(marker)
    item.add_marker(pytest.mark.xdist_group("hosts"))


@pytest.fixture(scope="package")
def hosts_without_ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayHosts]:
    """The hosts of these tests."""
    if (reason := network.why_not()) is not None:
        pytest.skip(reason)
    tones = write_tones(tmp_path_factory.mktemp("tones"))
    with ray_hosts(tmp_path_factory.mktemp("hosts"), tones) as hosts:
        yield hosts


@pytest.fixture
def hosts(hosts_without_ray: RayHosts) -> RayHosts:
    """The hosts of these tests with Ray on all of them."""
    if not hosts_without_ray.is_up:
        hosts_without_ray.up()
    return hosts_without_ray


@pytest.fixture(scope="package")
def calm(hosts_without_ray: RayHosts, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Name of an undisturbed run, which `rayscribe submit` has followed to its end."""
    if not hosts_without_ray.is_up:
        hosts_without_ray.up()
    tree = write_tree(hosts_without_ray, tmp_path_factory.mktemp("calm") / "tree")
    sets = [f"run.name={CALM}", f"run.storage_path={hosts_without_ray.runs}"]
    options = [part for item in sets for part in ("--set", item)]
    hosts_without_ray.rayscribe("submit", RECIPE, "--cluster", CLUSTER, "--follow", *options, folder=tree)
    return CALM
