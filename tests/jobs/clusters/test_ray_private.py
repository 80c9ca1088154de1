"""Fails when a new Ray changes one of the private interfaces that jobs/clusters/ray_private.py uses."""

import inspect
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from ray._private.authentication.http_token_authentication import get_auth_headers_if_auth_enabled
from ray._raylet import AuthenticationTokenLoader  # type: ignore[attr-defined]  # compiled
from ray.dashboard.modules.dashboard_sdk import SubmissionClient
from ray.dashboard.modules.job.common import JobInfoStorageClient
from ray.dashboard.modules.job.utils import get_driver_jobs
from ray.job_submission import JobSubmissionClient
from ray.util.state import StateApiClient

from jobs.addresses import direct
from jobs.clusters.managed.cluster_endpoint import ClusterEndpoint
from jobs.clusters.managed.node_logs import _get
from jobs.clusters.ray_private import NOISY_LOGGERS, JobsClient, StateClient, token_headers_without_mode
from jobs.preflight.context import get_metadata
from tests.test_architecture import ROOT, imports_of


def parameters_of(function: object) -> list[str]:
    assert callable(function)
    return list(inspect.signature(function).parameters)


def test_the_base_of_ray_s_clients_takes_an_address_and_headers() -> None:
    assert issubclass(JobSubmissionClient, SubmissionClient) and issubclass(StateApiClient, SubmissionClient)
    assert {"address", "headers"} <= set(parameters_of(SubmissionClient.__init__))
    assert parameters_of(SubmissionClient._check_connection_and_version) == [
        "self",
        "min_version",
        "version_error_message",
    ]


def test_every_request_of_ray_s_clients_goes_through_one_method_that_takes_a_timeout() -> None:
    assert parameters_of(SubmissionClient._do_request)[:3] == ["self", "method", "endpoint"]
    assert parameters_of(SubmissionClient._do_request)[-1] == "kwargs"
    assert "_do_request" in inspect.getsource(JobSubmissionClient.get_job_info)
    assert "_client_ray_version" in inspect.getsource(JobSubmissionClient)


def test_the_headers_of_ray_s_clients_are_given_by_one_function() -> None:
    assert parameters_of(get_auth_headers_if_auth_enabled) == ["user_headers"]


def test_what_the_dashboard_reads_of_jobs_is_read_with_a_timeout() -> None:
    assert "timeout" in parameters_of(get_driver_jobs)
    assert "timeout" in parameters_of(JobInfoStorageClient.get_all_jobs)


def test_no_other_file_of_the_jobs_side_uses_them() -> None:
    private = re.compile(r"ray\.(.*\.)?_|ray\.dashboard\b")
    users = {path.name for path in (ROOT / "jobs").rglob("*.py") if any(map(private.match, imports_of(path)))}
    assert users == {"ray_private.py"}


def test_the_loggers_that_are_quieted_exist() -> None:
    assert set(NOISY_LOGGERS) <= set(logging.Logger.manager.loggerDict)


@pytest.fixture
def shadowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user with a proxy that answers nobody, and with a password for every host."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "netrc").write_text("default login ana password secret")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))


@pytest.fixture
def dashboard() -> Iterator[tuple[str, list[str | None]]]:
    """URL of what responds to every request, and the Authorization of each so far."""
    seen: list[str | None] = []

    class Dashboard(BaseHTTPRequestHandler):
        timeout = 20

        def do_GET(self) -> None:
            seen.append(self.headers["Authorization"])
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"ray_version": "2.60.0", "data": {"result": {}}}')

        def log_message(self, *given: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Dashboard) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", seen
        server.shutdown()
        thread.join()


@pytest.mark.usefixtures("shadowed")
@pytest.mark.parametrize(
    "call",
    [
        lambda url, headers: JobsClient(url, headers).get_version(),
        lambda url, headers: StateClient(url, headers)._do_request("GET", "/x").raise_for_status(),
        get_metadata,
        lambda url, headers: _get(ClusterEndpoint(url, headers, on_this_machine=True), "/x", {}),
    ],
    ids=["jobs", "state", "preflight", "logs"],
)
def test_a_dashboard_on_loopback_is_called_past_the_user_s_proxy_and_passwords(
    call: Callable[[str, Mapping[str, str]], object], dashboard: tuple[str, list[str | None]]
) -> None:
    url, seen = dashboard
    call(url, {"Authorization": "Bearer token"})
    assert set(seen) == {"Bearer token"}


def test_other_dashboards_are_called_as_the_user_s_environment_has_it() -> None:
    assert direct("http://10.0.0.1:8265") == {}


def test_the_token_that_is_found_stays_out_of_what_this_process_demands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("a" * 32)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    assert token_headers_without_mode() == {"authorization": f"Bearer {'a' * 32}"}
    # Kept by Ray's loader, a driver here would demand it of a cluster that has none.
    assert get_auth_headers_if_auth_enabled({}) == {}
    assert not AuthenticationTokenLoader.instance().has_token()
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    assert token_headers_without_mode() is None
