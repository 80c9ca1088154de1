"""Packages that come in over HTTP: whole ones are kept, and of all others nothing is left."""

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from fastapi import FastAPI, Request

from jobs.api.server.error_responses import add_error_handlers
from jobs.api.server.middleware import AccessLogMiddleware
from jobs.api.server.routes.package_routes import PREFIX, STALE_S, receive_upload, remove_stale_uploads
from tests.jobs.api.backend_harness import BackendHarness, make_package, served
from tests.jobs.ledger.builders import wait_until

MAX_BYTES = 1000


def left_in(folder: Path) -> list[str]:
    """Names of what is in the store."""
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def test_a_package_is_kept_under_its_hash_and_may_come_again(
    http: httpx.Client, harness: BackendHarness, tmp_path: Path
) -> None:
    sha256 = make_package(tmp_path / "a.zip")
    content = (tmp_path / "a.zip").read_bytes()
    assert http.head(f"/v1/packages/{sha256}").status_code == 404
    for _ in range(2):
        response = http.put(f"/v1/packages/{sha256}", content=content)
        assert (response.status_code, response.content) == (204, b"")
    assert http.head(f"/v1/packages/{sha256}").status_code == 200
    assert left_in(harness.backend.uploads) == [f"{sha256}.zip"]
    assert (harness.backend.uploads / f"{sha256}.zip").read_bytes() == content


@pytest.mark.parametrize("content", [b"", b"no zip", b"PK\x05\x06" + bytes(18)], ids=["empty", "text", "other zip"])
def test_what_is_not_the_package_of_its_name_is_refused(
    reader: httpx.Client, shared: tuple[BackendHarness, str], content: bytes
) -> None:
    response = reader.put(f"/v1/packages/{'a' * 64}", content=content)
    assert (response.status_code, response.json()["error"]["type"]) == (422, "ConfigError")
    assert left_in(shared[0].backend.uploads) == []


@pytest.mark.parametrize("name", ["x", "A" * 64, "a" * 63, "%2e%2e%2fledger.db", "a" * 64 + ".zip"])
def test_a_name_that_is_no_hash_names_no_file(reader: httpx.Client, name: str) -> None:
    assert reader.put(f"/v1/packages/{name}", content=b"x").status_code in (404, 422)
    assert reader.head(f"/v1/packages/{name}").status_code in (404, 422)


def app_that_takes(folder: Path, *, idle_timeout_s: float = 30.0) -> FastAPI:
    """The same way in, with bounds that a test can reach."""
    app = FastAPI()
    add_error_handlers(app)

    @app.put("/")
    async def take(request: Request) -> int:
        async with receive_upload(request, folder, max_bytes=MAX_BYTES, idle_timeout_s=idle_timeout_s) as upload:
            return upload.stat().st_size

    app.add_middleware(AccessLogMiddleware)
    return app


def chunks(number: int) -> Iterator[bytes]:
    """A body whose length is not logged beforehand."""
    return (b"x" * 100 for _ in range(number))


def test_an_upload_that_is_too_large_is_refused_whether_it_says_so_or_not(tmp_path: Path) -> None:
    with served(app_that_takes(tmp_path / "in")) as url:
        assert httpx.put(url, content=chunks(10), timeout=30).json() == MAX_BYTES
        for content in (chunks(11), b"x" * (MAX_BYTES + 1)):
            response = httpx.put(url, content=content, timeout=30)
            assert (response.status_code, response.json()["error"]["type"]) == (413, "ConfigError")
    assert left_in(tmp_path / "in") == []


def begun_upload(url: str) -> socket.socket:
    """A connection on which ten of a hundred bytes have come."""
    connection = socket.create_connection((urlsplit(url).hostname, urlsplit(url).port), 30)
    connection.sendall(b"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n0123456789")
    return connection


def test_an_upload_whose_client_dies_leaves_nothing(tmp_path: Path) -> None:
    with served(app_that_takes(tmp_path)) as url:
        with begun_upload(url):
            wait_until(lambda: left_in(tmp_path) != [], "the upload to begin")
        wait_until(lambda: left_in(tmp_path) == [], "the upload to be cleared away")
        assert httpx.put(url, content=b"x", timeout=30).json() == 1


def test_an_upload_that_falls_silent_is_given_up(tmp_path: Path) -> None:
    with served(app_that_takes(tmp_path, idle_timeout_s=0.3)) as url, begun_upload(url) as slow:
        response = b"".join(iter(lambda: slow.recv(65536), b""))
    assert response.startswith(b"HTTP/1.1 408 ")
    assert left_in(tmp_path) == []


def test_what_a_killed_service_left_is_removed_and_what_is_coming_in_is_not(tmp_path: Path) -> None:
    old, new, package = (tmp_path / name for name in (f"{PREFIX}old", f"{PREFIX}new", "a.zip"))
    for path in (old, new, package):
        path.write_bytes(b"x")
    for path in (old, package):
        os.utime(path, (time.time() - STALE_S - 60,) * 2)
    remove_stale_uploads(tmp_path)
    remove_stale_uploads(tmp_path / "nothing")
    assert left_in(tmp_path) == [new.name, package.name]
