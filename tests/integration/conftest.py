"""One real Ray for all tests of this folder, and what runs of task.py on it learn from."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.driver_process import RayHead
from tests.integration.ray_cluster import ray_cluster
from tests.integration.training_trees import write_tones, write_training_tree

LOGICAL_CPUS = 8
# With many processes, or up to a limit that another's growth would reach.
ONE_AT_A_TIME = ("test_fenced", "test_hurt_clusters")
# Ray gives a node half a minute to register, which it needs where two of these start at once on two cores.
OF_SEVERAL_NODES = (
    *("test_stale_nodes", "test_elastic", "test_preparing_survives", "test_unauthenticated_calls"),
    *("test_shipped_data", "test_launch", "test_time_limits"),
)


def pytest_itemcollected(item: pytest.Item) -> None:
    """One process runs, on one Ray, all that need it, and what others disturb; modules of the rest stay together."""
    item.add_marker(pytest.mark.integration)
    assert isinstance(item, pytest.Function)
    together = "ray_head" in item.fixturenames or item.path.stem in ONE_AT_A_TIME
    group = "hosts" if item.path.stem in OF_SEVERAL_NODES else item.path.stem
    item.add_marker(pytest.mark.xdist_group("ray" if together else group))


@pytest.fixture(scope="session")
def ray_head() -> Iterator[RayHead]:
    """The session's Ray. It takes each submission id once: no two runs of one name in all of these tests."""
    with ray_cluster(num_cpus=LOGICAL_CPUS) as (_, head):
        yield head


@pytest.fixture(scope="session")
def tones(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with train.csv, validation.csv and test.csv of tones with made-up transcripts."""
    return write_tones(tmp_path_factory.mktemp("tones"))


@pytest.fixture
def training_tree(tones: Path, tmp_path: Path) -> Path:
    """A repository whose task.py trains for real, with a recipe.yaml of two workers and dropout."""
    return write_training_tree(tmp_path / "repository", tones, str(tmp_path / "prepared"))
