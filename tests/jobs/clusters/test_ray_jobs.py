"""Ray's Jobs API over HTTP, where what answers is not a healthy dashboard."""

import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from jobs.clusters import ray_jobs, ray_private
from jobs.clusters.ray_jobs import AGENT_CLASH, NO_AGENT, RayJobs
from jobs.errors import ClusterError, JobLostError
from tests.jobs.clusters.cluster_contract import contract_request
from tests.jobs.ledger.builders import wait_until


@pytest.fixture
def mute() -> Iterator[str]:
    """A port that takes connections and never says a word."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.integration
def test_a_dashboard_that_hangs_keeps_no_thread_for_ever(mute: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_private, "RESPONSE_TIMEOUT_S", 0.3)
    before = threading.active_count()
    for _ in range(5):
        with pytest.raises(ClusterError, match=mute):
            RayJobs(mute)
    wait_until(lambda: threading.active_count() <= before, "end of the threads that asked")


@pytest.mark.parametrize("clash", [None, "port 52365 is taken by process 7 (ray::DashboardAgent)"])
def test_a_cluster_without_agents_is_waited_for_once_and_then_says_what_holds_the_port(
    clash: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = []

    def start(self: RayJobs, request: object) -> None:
        tries.append(request)
        raise RuntimeError(f"Request failed with status code 500: {NO_AGENT}, please try again later.")

    monkeypatch.setattr(ray_jobs, "JobsClient", lambda url, headers: None)
    monkeypatch.setattr(ray_jobs, "START_TIMEOUT_S", 0.2)
    monkeypatch.setattr(ray_jobs, "POLL_S", 0.05)
    monkeypatch.setattr(ray_jobs, "agent_clash", lambda port: clash)
    monkeypatch.setattr(RayJobs, "_start", start)
    jobs = RayJobs("http://127.0.0.1:9")
    request = contract_request("one", "pass", address="http://127.0.0.1:9")
    with pytest.raises(JobLostError, match=f"accepts no jobs .*{NO_AGENT}") as error:
        jobs.submit(request)
    assert (clash or AGENT_CLASH) in str(error.value)
    first = len(tries)
    assert first > 1
    with pytest.raises(JobLostError):
        jobs.submit(request)
    assert len(tries) == first + 1


@pytest.mark.parametrize(
    ("status", "what"), [(401, r"requires a token, and none was sent \(401\)"), (403, r"refuses the token \(403\)")]
)
def test_a_token_that_is_missing_or_wrong_is_named_with_the_fix(status: int, what: str) -> None:
    class Guarded(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(b"Unauthorized: Missing or invalid authentication token")

        def log_message(self, *given: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Guarded) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        with pytest.raises(ClusterError, match=f"{url} {what}: set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH"):
            RayJobs(url)
        client = object.__new__(ray_private.JobsClient)
        client._address, client._headers = url, {}
        with pytest.raises(RuntimeError, match=f"status code {status}"):
            client.log_part("node", "sr-a1", start=0, size=10)
        server.shutdown()
        thread.join()
