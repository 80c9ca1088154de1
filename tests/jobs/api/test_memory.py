"""The service's memory: it does not grow with what it has answered, nor with the size of what is uploaded."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.jobs.api.backend_harness import config_of, make_package, open_harness
from tests.jobs.api.serve_process import serve_process

MIB = 1024**2
WARM_UP, REQUESTS = 1_000, 3_000
# What the allocator may keep after thousands of requests; a leak of a kilobyte a request is found.
MAX_GROWTH_BYTES = 2 * MIB
UPLOAD_BYTES = 95 * MIB
MAX_FOR_UPLOAD_BYTES = 24 * MIB


def requests(http: httpx.Client, package: str) -> Iterator[httpx.Response]:
    """All kinds of requests, good ones and bad ones, for ever."""
    number = 0
    while True:
        number += 1
        name = f"run-{number:06}"
        run_request = {"config": config_of(name), "package": package}
        yield http.get("/v1/runs")
        yield http.get("/v1/runs", params={"state": ["QUEUED", "FAILED"], "limit": 500})
        yield http.get("/v1/runs/run-training")
        yield http.get("/v1/runs/run-failed/events")
        yield http.get("/v1/runs/run-failed/logs")
        yield http.get("/v1/runs/nothing")
        yield http.get("/v1/runs", params={"cursor": f"bad{number}"})
        yield http.post("/v1/runs", json={**run_request, "config": {"run": {"name": name}}})
        yield http.post("/v1/runs/run-succeeded/resume")
        yield http.post("/v1/runs/run-failed/stop")
        yield http.get(f"/v1/{name}", headers={"Authorization": f"Bearer rsk_{number}"})
        yield http.get("/metrics")
        yield http.get("/v1/usage", params={"by": "run"})
        yield http.get("/v1/queues")
        yield http.get("/healthz")


# Alone: how much the allocator keeps is a matter of what else runs.
@pytest.mark.long
def test_memory_grows_neither_with_requests_nor_with_the_size_of_uploads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # By default each thread may get a pool of memory of its own, when others are busy: the machine's load decides.
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")
    database = f"sqlite:///{tmp_path / 'ledger.db'}"
    with open_harness(tmp_path, database) as harness:
        harness.fill()
        token = harness.token
    package = make_package(tmp_path / "package.zip")
    with serve_process(tmp_path, database) as service:
        process = psutil.Process(service.pid)
        with httpx.Client(base_url=service.url, headers={"Authorization": f"Bearer {token}"}, timeout=60) as http:
            http.put(f"/v1/packages/{package}", content=(tmp_path / "package.zip").read_bytes()).raise_for_status()
            request = requests(http, package)
            assert {next(request).status_code // 100 for _ in range(WARM_UP)} == {2, 4}
            before = process.memory_info().rss
            assert all(next(request).status_code < 500 for _ in range(REQUESTS))
            after = process.memory_info().rss
            assert after - before < MAX_GROWTH_BYTES, f"{before / MIB:.1f} MiB, then {after / MIB:.1f} MiB"

            large = tmp_path / "large"
            with large.open("wb") as file:
                file.truncate(UPLOAD_BYTES)
            with large.open("rb") as file:
                response = http.put(f"/v1/packages/{'0' * 64}", content=file)
            assert response.status_code == 422
            peak = _peak_bytes(service.pid)
            assert peak - after < MAX_FOR_UPLOAD_BYTES, f"{after / MIB:.1f} MiB, at the peak {peak / MIB:.1f} MiB"


def _peak_bytes(pid: int) -> int:
    """The most resident memory that a process ever had."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024
