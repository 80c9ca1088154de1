"""Clients that send half a request, or wait for a cluster that hangs, keep nobody else from being answered."""

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from jobs.api.server import connection_limits
from jobs.model import LogLine, LogPage
from jobs.service.service import Service
from tests.jobs.api.backend_harness import BackendHarness

HALF = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Half: "
# Answered at once, before the rest of the body.
HALF_BODY = b"POST /v1/runs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\nabc"


@pytest.fixture
def opened(harness_and_url: tuple[BackendHarness, str]) -> Iterator[Any]:
    """Opens a connection and sends something."""
    parts = urlsplit(harness_and_url[1])
    with ExitStack() as stack:

        def connect(data: bytes) -> socket.socket:
            connection = stack.enter_context(socket.create_connection((parts.hostname, parts.port), timeout=30))
            connection.sendall(data)
            return connection

        yield connect


def read_to_the_end(connection: socket.socket) -> bytes:
    content = b""
    try:
        while data := connection.recv(10_000):
            content += data
    except ConnectionResetError:
        pass
    return content


@pytest.mark.parametrize("data", [b"", HALF])
def test_a_client_that_sends_no_complete_header_is_disconnected(
    opened: Any, monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    monkeypatch.setattr(connection_limits, "HEADER_TIMEOUT_S", 0.1)
    assert read_to_the_end(opened(data)) == b""


def test_a_client_that_goes_on_sending_a_body_after_its_response_is_disconnected(
    opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_limits, "HEADER_TIMEOUT_S", 0.1)
    connection = opened(HALF_BODY)
    assert b" 401 " in connection.recv(10_000)
    connection.sendall(b"d")
    read_to_the_end(connection)


def test_a_connection_serves_a_request_after_another(http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_limits, "HEADER_TIMEOUT_S", 5.0)
    assert {http.get("/v1/runs").status_code for _ in range(5)} == {200}


def test_many_half_requests_leave_room_for_a_complete_one(
    opened: Any, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_limits, "MAX_CONNECTIONS", 10)
    half = [opened(HALF) for _ in range(30)]
    assert http.get("/healthz").status_code == 200
    assert all(read_to_the_end(connection) == b"" for connection in half[:20])


def test_many_half_uploads_leave_room_for_a_complete_request(
    opened: Any, http: httpx.Client, harness: BackendHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_limits, "MAX_CONNECTIONS", 10)
    header = f"PUT /v1/packages/{'0' * 64} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {harness.token}\r\n"
    for _ in range(10):
        connection = opened(f"{header}Expect: 100-continue\r\nContent-Length: 9999\r\n\r\n".encode())
        assert b" 100 " in connection.recv(1000)
        connection.sendall(b"abc")
    assert http.get("/healthz").status_code == 200


def test_a_client_that_does_not_read_its_response_is_disconnected(
    opened: Any, harness: BackendHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = threading.Event()
    connection_lost = connection_limits.LimitedProtocol.connection_lost

    def lose(self: Any, exc: Exception | None) -> None:
        connection_lost(self, exc)
        lost.set()

    monkeypatch.setattr(connection_limits.LimitedProtocol, "connection_lost", lose)
    monkeypatch.setattr(connection_limits, "READ_TIMEOUT_S", 0.1)
    page = LogPage(attempt=1, lines=[LogLine(source="driver", text="x" * 8_000_000)], cursor="", ended=True)
    monkeypatch.setattr(Service, "logs", lambda self, run_id, **query: page)
    header = f"GET /v1/runs/run-failed/logs HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {harness.token}\r\n\r\n"
    opened(header.encode())
    assert lost.wait(30)


def test_readers_of_logs_that_hang_delay_no_health_check(
    opened: Any, http: httpx.Client, harness: BackendHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, reading = threading.Event(), threading.Semaphore(0)

    def hang(self: Service, run_id: str, **query: Any) -> None:
        reading.release()
        ended.wait()

    monkeypatch.setattr(Service, "logs", hang)
    header = f"GET /v1/runs/run-failed/logs HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {harness.token}\r\n\r\n"
    for _ in range(60):
        opened(header.encode())
    try:
        assert reading.acquire(timeout=30)
        assert http.get("/v1/runs").status_code == 200
        assert http.get("/healthz").json()["status"] == "ok"
    finally:
        ended.set()
