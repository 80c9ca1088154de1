"""`serve`, as a process: what it says, whom it lets in, how it ends, and two of them on one ledger."""

import getpass
import logging
import os
import signal
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from jobs.api.client import Client
from jobs.api.server.process import LogFormatter, ServeSettings, serve
from jobs.ledger import Ledger
from jobs.model import RunState
from tests.jobs.api.backend_harness import config_of, make_package
from tests.jobs.api.serve_process import NO_CLUSTER, serve_process
from tests.jobs.api.test_client import run_request
from tests.jobs.ledger.builders import wait_until
from trainers.errors import ConfigError


def test_a_record_of_the_log_begins_its_only_line_that_is_not_indented() -> None:
    text = "/mnt/runs/\n2026-11-23 WARNING jobs: all is well\x1b[2J\r/sr: no response"
    record = logging.LogRecord("jobs", logging.WARNING, "", 1, "%s", (text,), None)
    assert LogFormatter("%(levelname)s %(message)s").format(record) == (
        "WARNING /mnt/runs/\n    2026-11-23 WARNING jobs: all is well\\x1b[2J\\r/sr: no response"
    )


@pytest.fixture
def database(tmp_path: Path) -> str:
    """The URL of a ledger that is not there yet."""
    return f"sqlite:///{tmp_path / 'ledger.db'}"


@pytest.fixture
def ledger(database: str) -> Iterator[Ledger]:
    """The same ledger, seen from here."""
    ledger = Ledger.open(database)
    yield ledger
    ledger.close()


def token_of(home: Path) -> str:
    """The first token."""
    return (home / "token").read_text().strip()


@pytest.mark.integration
def test_it_says_where_it_serves_and_the_command_line_s_client_just_works(tmp_path: Path, database: str) -> None:
    with serve_process(tmp_path, database) as service:
        url = service.url
        made, summary = service.lines
        assert made.startswith("created the first token")
        assert token_of(tmp_path) not in made
        assert stat.S_IMODE((tmp_path / "token").stat().st_mode) == 0o600
        assert f"database {database}" in summary
        assert NO_CLUSTER in summary
        assert summary.endswith("active: holds the lease")
        with Client(url, token_of(tmp_path)) as client:
            client.submit(run_request(client, tmp_path, "first"))
            assert client.run("first").user == getpass.getuser()
            assert client.health()["holds_lease"] is True
        assert httpx.get(f"{url}/v1/runs", timeout=30).status_code == 401
        assert service.end() == 0
    log = service.log.read_text()
    assert "POST /v1/runs 201" in log
    assert token_of(tmp_path) not in log


@pytest.mark.integration
def test_a_postgres_database_is_shown_without_its_password(tmp_path: Path, postgres_url: str) -> None:
    url = postgres_url.replace("postgresql://rayscribe@", "postgresql://rayscribe:hunter2@")
    with serve_process(tmp_path, url) as service:
        assert httpx.get(f"{service.url}/healthz", timeout=30).json()["status"] == "ok"
        assert service.end() == 0
    assert "hunter2" not in "".join(service.lines) + service.log.read_text()
    assert "postgresql://rayscribe:***@" in service.lines[-1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.integration
def test_a_service_that_is_told_to_end_leaves_the_lease_to_the_next_at_once(
    tmp_path: Path, database: str, ledger: Ledger, number: int
) -> None:
    with serve_process(tmp_path, database, lease_s=3600.0) as service:
        assert service.url
        follower = ledger.lease("test", ttl_s=3600.0)
        assert not follower.try_hold()
        service.signal(number)
        assert service.wait() == 0
        assert follower.try_hold()


@pytest.mark.integration
def test_of_two_services_both_answer_and_one_acts_and_the_other_takes_over(tmp_path: Path, database: str) -> None:
    with serve_process(tmp_path, database) as first:
        assert first.url
        with serve_process(tmp_path, database) as second, Client(second.url, token_of(tmp_path)) as client:
            assert second.lines[-1].endswith("standby: another service holds the lease")
            assert len(second.lines) == 1
            assert client.health()["holds_lease"] is False
            assert client.runs().runs == []
            first.signal(signal.SIGKILL)
            first.wait()
            wait_until(lambda: client.health()["holds_lease"] is True, "the second to take over")


@pytest.mark.integration
def test_without_tokens_only_this_machine_is_served(tmp_path: Path, database: str) -> None:
    with serve_process(tmp_path, database, no_auth=True) as service:
        assert httpx.get(f"{service.url}/v1/runs", timeout=30).status_code == 200
        assert "without authentication" in service.lines[-1]
        assert not (tmp_path / "token").exists()
        assert httpx.get(f"{service.url}/v1/runs", headers={"Host": "evil.example"}, timeout=30).status_code == 403
    with pytest.raises(ConfigError, match=r"bind to 127\.0\.0\.1"):
        serve(ServeSettings(database=database, host="0.0.0.0", port=0, no_auth=True))


def test_a_port_that_is_in_use_is_reported_before_anything_is_created(tmp_path: Path, database: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ConfigError, match="choose another --port"):
        serve(ServeSettings(database=database, port=taken.getsockname()[1]))
    assert not (tmp_path / "ledger.db").exists()


@pytest.mark.integration
def test_runs_wait_for_a_cluster_that_is_down_and_can_be_stopped(tmp_path: Path, database: str) -> None:
    with serve_process(tmp_path, database) as service, Client(service.url, token_of(tmp_path)) as client:
        client.submit(run_request(client, tmp_path, "waits"))
        run = client.run("waits")
        assert run.state == RunState.QUEUED
        assert NO_CLUSTER in run.reason
        assert client.stop("waits").state == RunState.STOPPED


@pytest.mark.integration
def test_a_cluster_that_hangs_neither_delays_answers_nor_the_end(tmp_path: Path, database: str, ledger: Ledger) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with serve_process(tmp_path, database, addresses=[address]) as service:
            with Client(service.url, token_of(tmp_path), read_timeout_s=10) as client:
                client.submit(run_request(client, tmp_path, "waits"))
                assert client.run("waits").state == RunState.QUEUED
            assert service.end() == 0
            wait_until(ledger.lease("test", ttl_s=2.0).try_hold, "the lease to be free")


@pytest.mark.integration
def test_what_a_killed_service_left_of_an_upload_is_cleared_away(tmp_path: Path, database: str) -> None:
    packages = tmp_path / "packages"
    packages.mkdir()
    stale = packages / ".upload-old"
    stale.write_bytes(b"x")
    os.utime(stale, (1.0, 1.0))
    with serve_process(tmp_path, database) as service:
        assert service.url
        assert not stale.exists()


@pytest.mark.integration
def test_an_upload_that_is_cut_off_by_the_end_leaves_nothing(tmp_path: Path, database: str) -> None:
    packages = tmp_path / "packages"
    with serve_process(tmp_path, database) as service:
        parts = urlsplit(service.url)
        with socket.create_connection((parts.hostname, parts.port), 30) as connection:
            head = f"PUT /v1/packages/{'0' * 64} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token_of(tmp_path)}\r\n"
            connection.sendall(f"{head}Content-Length: 100\r\n\r\nonly this".encode())
            wait_until(lambda: bool(list(packages.glob(".upload-*"))), "the upload to begin")
            assert service.end() == 0
    assert list(packages.iterdir()) == []


@pytest.mark.integration
def test_a_spec_s_secret_is_in_no_answer_no_log_and_no_ledger(tmp_path: Path, database: str) -> None:
    secret = "hf_SeCrEtVaLuE"
    sha256 = make_package(tmp_path / "package.zip")
    with serve_process(tmp_path, database) as service:
        with Client(service.url, token_of(tmp_path)) as client:
            client.put_package(sha256, tmp_path / "package.zip")
        config = {**config_of("a"), "job": {"runtime_env": {"secrets": {"HF_TOKEN": {"value": secret}}}}}
        body = {"config": config, "package": sha256}
        headers = {"Authorization": f"Bearer {token_of(tmp_path)}"}
        for sent in (body, {**body, secret: secret}, [secret], {"config": {"run": {"name": secret, secret: secret}}}):
            response = httpx.post(f"{service.url}/v1/runs", json=sent, headers=headers, timeout=30)
            assert response.status_code == 422
        response = httpx.get(f"{service.url}/v1/runs", params={"tag": secret}, headers=headers, timeout=30)
        assert response.json()["runs"] == []
        assert service.end() == 0
    assert secret not in service.log.read_text()
    assert not [path for path in tmp_path.glob("ledger.db*") if secret.encode() in path.read_bytes()]
