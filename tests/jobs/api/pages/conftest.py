"""Browsers that have signed in, at two backends that all tests of the pages share: one to look at, one to change."""

from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from jobs.api.server.pages.page_access import COOKIE, SIGN_IN
from tests.jobs.api.backend_harness import BackendHarness, served_backend


@contextmanager
def browsing(url: str) -> Iterator[httpx.Client]:
    """A client that sends what a browser does from a page of this origin."""
    with httpx.Client(base_url=url, headers={"Sec-Fetch-Site": "same-origin", "Origin": url}, timeout=30) as client:
        yield client


@contextmanager
def signed_in(url: str, token: str) -> Iterator[httpx.Client]:
    with browsing(url) as client:
        assert client.post(SIGN_IN, data={"token": token}).status_code == 303
        assert COOKIE in client.cookies
        yield client


@pytest.fixture(scope="package")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BackendHarness, str]]:
    """A backend that no test changes, and its URL."""
    with served_backend(tmp_path_factory.mktemp("looked-at")) as served:
        yield served


@pytest.fixture(scope="package")
def visitor(shared: tuple[BackendHarness, str]) -> Iterator[httpx.Client]:
    """Ana's browser there."""
    with signed_in(shared[1], shared[0].token) as client:
        yield client


@pytest.fixture(scope="package")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BackendHarness, str]]:
    """A backend to which tests add runs of their own, and its URL."""
    with served_backend(tmp_path_factory.mktemp("changed")) as served:
        yield served


@pytest.fixture(scope="package")
def harness(changed: tuple[BackendHarness, str]) -> BackendHarness:
    return changed[0]


@pytest.fixture(scope="package")
def browser(changed: tuple[BackendHarness, str]) -> Iterator[httpx.Client]:
    """Ana's browser there."""
    with signed_in(changed[1], changed[0].token) as client:
        yield client
