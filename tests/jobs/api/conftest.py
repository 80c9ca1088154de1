"""A served house for each test, and one for those that change nothing."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.jobs.api.house import House, served_house


@pytest.fixture
def house_and_url(tmp_path: Path) -> Iterator[tuple[House, str]]:
    """A house of one's own, served."""
    with served_house(tmp_path) as served:
        yield served


@pytest.fixture
def house(house_and_url: tuple[House, str]) -> House:
    """What is behind the door."""
    return house_and_url[0]


@pytest.fixture
def http(house_and_url: tuple[House, str]) -> Iterator[httpx.Client]:
    """Ana at the door."""
    house, url = house_and_url
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {house.token}"}, timeout=30) as client:
        yield client


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[House, str]]:
    """A house that all tests of a module look at, and none changes; served."""
    with served_house(tmp_path_factory.mktemp("house")) as served:
        yield served


@pytest.fixture(scope="module")
def reader(shared: tuple[House, str]) -> Iterator[httpx.Client]:
    """Ana at the shared door."""
    house, url = shared
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {house.token}"}, timeout=30) as client:
        yield client


@pytest.fixture(scope="module")
def stranger(shared: tuple[House, str]) -> Iterator[httpx.Client]:
    """Somebody without a token at the shared door."""
    with httpx.Client(base_url=shared[1], timeout=30) as client:
        yield client
