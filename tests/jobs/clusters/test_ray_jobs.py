"""Ray's Jobs API over HTTP, where what answers is not a healthy dashboard."""

import socket
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from jobs.clusters import ray_private
from jobs.clusters.ray_jobs import RayJobs
from jobs.errors import ClusterError
from tests.jobs.ledger.builders import wait_until


@pytest.fixture
def mute() -> Iterator[str]:
    """A port that takes connections and never says a word."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def test_a_dashboard_that_hangs_keeps_no_thread_for_ever(mute: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_private, "RESPONSE_TIMEOUT_S", 0.3)
    before = threading.active_count()
    for _ in range(5):
        with pytest.raises(ClusterError, match=mute):
            RayJobs(mute)
    wait_until(lambda: threading.active_count() <= before, "end of the threads that asked")
