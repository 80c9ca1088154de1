"""A ledger of each kind: what holds on SQLite holds on PostgreSQL."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs.ledger import Ledger


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """The URL of a file that is not there yet, in a folder that is not there yet."""
    return f"sqlite:///{tmp_path / 'made' / 'by us' / 'ledger.db'}"


@pytest.fixture(params=["sqlite", "postgres"])
def ledger_url(request: pytest.FixtureRequest) -> str:
    """The URL of an empty database of each kind."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture
def ledger(ledger_url: str) -> Iterator[Ledger]:
    """An empty ledger of each kind."""
    ledger = Ledger.open(ledger_url)
    yield ledger
    ledger.close()
