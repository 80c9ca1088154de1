"""Which Ray `rayscribe train` joins, and with which token."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs.cli.train import joined
from jobs.clusters.managed.cluster_endpoint import connect
from jobs.clusters.managed.cluster_record import LocalRecord, clusters_folder, ensure_token
from jobs.errors import ClusterGoneError
from tests.jobs.control_store import living_ray

URL, ADDRESS = "http://127.0.0.1:20001", "127.0.0.1:20000"


@pytest.fixture(autouse=True)
def other_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user with a cluster, and another one's token in the environment."""
    monkeypatch.setenv("RAYSCRIBE_HOME", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN", "another one's")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "another/one's")
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    folder = tmp_path / "ray"
    LocalRecord(name="mine", created_s=1.0, dashboard=URL, address=ADDRESS, folder=folder).write()
    ensure_token("mine")


@pytest.fixture
def lives(tmp_path: Path) -> Iterator[None]:
    """The cluster has not ended."""
    with living_ray(tmp_path / "ray"):
        yield


@pytest.mark.usefixtures("lives")
@pytest.mark.parametrize(
    ("address", "cluster"),
    [
        (None, "mine"),
        ("127.0.0.1:20000", None),
        ("localhost:20000", None),
        ("http://localhost:20001/", None),
        ("http://[::1]:20001", None),
    ],
)
def test_a_cluster_that_was_started_here_isjoined_with_its_own_token(address: str | None, cluster: str | None) -> None:
    assert joined(address, cluster) == "127.0.0.1:20000"
    assert os.environ["RAY_AUTH_TOKEN_PATH"] == str(clusters_folder() / "mine.token")
    assert "RAY_AUTH_TOKEN" not in os.environ


@pytest.mark.usefixtures("lives")
def test_a_url_in_the_environment_is_that_of_a_cluster_by_any_name_of_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "http://localhost:20001")
    assert joined(None, None) == "127.0.0.1:20000"


@pytest.mark.usefixtures("lives")
def test_its_token_goes_only_to_where_its_dashboard_listens() -> None:
    found = connect("http://localhost:20001")
    assert found.url == URL and found.headers is not None and "Authorization" in found.headers


def test_who_listens_where_a_cluster_has_ended_gets_no_token_of_it() -> None:
    assert connect(URL).headers is None
    assert joined(URL, None) == URL
    assert os.environ["RAY_AUTH_TOKEN"] == "another one's"


def test_a_cluster_that_has_ended_is_notjoined_by_its_name() -> None:
    with pytest.raises(ClusterGoneError, match="cluster://mine has ended; start it again"):
        joined(None, "mine")
    assert os.environ["RAY_AUTH_TOKEN"] == "another one's"


@pytest.mark.parametrize("address", ["10.0.0.1:20000", "127.0.0.1:20002", "auto", "127.0.0.1:many"])
def test_another_cluster_keeps_the_token_of_the_environment(address: str) -> None:
    assert joined(address, None) == address
    assert os.environ["RAY_AUTH_TOKEN"] == "another one's"
