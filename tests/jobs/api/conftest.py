"""A backend with an HTTP server for each test, and a shared one for tests that only read."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.jobs.api.backend_harness import BackendHarness, served_backend


@pytest.fixture
def harness_and_url(tmp_path: Path) -> Iterator[tuple[BackendHarness, str]]:
    """A backend for one test, and its URL."""
    with served_backend(tmp_path) as served:
        yield served


@pytest.fixture
def harness(harness_and_url: tuple[BackendHarness, str]) -> BackendHarness:
    """The backend of `harness_and_url`."""
    return harness_and_url[0]


@pytest.fixture
def http(harness_and_url: tuple[BackendHarness, str]) -> Iterator[httpx.Client]:
    """A client with Ana's token."""
    harness, url = harness_and_url
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {harness.token}"}, timeout=30) as client:
        yield client


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BackendHarness, str]]:
    """A backend that the tests of a module share and do not change, and its URL."""
    with served_backend(tmp_path_factory.mktemp("backend")) as served:
        yield served


@pytest.fixture(scope="module")
def reader(shared: tuple[BackendHarness, str]) -> Iterator[httpx.Client]:
    """A client of the shared backend with Ana's token."""
    harness, url = shared
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {harness.token}"}, timeout=30) as client:
        yield client


@pytest.fixture(scope="module")
def anonymous(shared: tuple[BackendHarness, str]) -> Iterator[httpx.Client]:
    """A client of the shared backend without a token."""
    with httpx.Client(base_url=shared[1], timeout=30) as client:
        yield client
