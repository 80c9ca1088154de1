"""How long the service takes with many runs, and whether it grows: python -m tests.benchmarks.api [--runs 100000].

A service is started as `rayscribe serve` starts it, on a SQLite file that was filled in bulk; its controller makes its
rounds all the while (its cluster is down, so that nothing is submitted). Prints medians and 95th percentiles of what
one client sees over HTTP on loopback, and the service's resident memory after each thousand requests.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import httpx
import psutil
import yaml
from sqlalchemy import update

from jobs.api.server.pages.page_access import COOKIE
from jobs.ledger import Ledger, tables
from jobs.ledger.database import Database
from tests.benchmarks.ledger import QUEUES, Sizes, fill
from tests.jobs.api.serve_process import NO_CLUSTER, serve_process

GOAL_MS = 100.0
HOLDING = 200
MIB = 1024**2
Ask = Callable[[], httpx.Response]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.api", description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--waiting", type=int, default=10_000)
    parser.add_argument("--turns", type=int, default=100, help="calls of each kind")
    parser.add_argument("--requests", type=int, default=5_000, help="mixed requests over which memory is watched")
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="rayscribe-bench-") as name:
        folder = Path(name)
        database = f"sqlite:///{folder / 'ledger.db'}"
        token = _filled(database, Sizes(chosen.runs, chosen.waiting, HOLDING))
        queues = folder / "queues.yaml"
        queues.write_text(yaml.safe_dump({"queues": {queue: {} for queue in QUEUES}}), encoding="utf-8")
        print(f"{chosen.runs} runs, of which {chosen.waiting} wait and {HOLDING} hold a gang\n")
        with (
            serve_process(folder, database, queues_file=str(queues), poll_s=1.0, lease_s=10.0) as service,
            httpx.Client(
                base_url=service.url,
                headers={"Authorization": f"Bearer {token}"},
                cookies={COOKIE: token},
                timeout=120,
            ) as http,
        ):
            _latency(_questions(http), chosen.turns)
            _memory(_questions(http), service.pid, chosen.requests)
    return 0


def _filled(url: str, sizes: Sizes) -> str:
    """Fills a ledger; returns a token."""
    database = Database.open(url)
    # Times as a service of today has them, since a page shows the usage of the last days.
    fill(database, sizes, end_s=time.time())
    with database.writing() as connection:
        # Whatever listens on this machine is left alone.
        connection.execute(update(tables.runs).values(address=NO_CLUSTER))
    database.close()
    ledger = Ledger.open(url)
    token = ledger.tokens.add("bench", time.time())
    ledger.close()
    return token


def _questions(http: httpx.Client) -> dict[str, Ask]:
    return {
        "GET /v1/runs, first page": lambda: http.get("/v1/runs"),
        "GET /v1/runs?limit=500": lambda: http.get("/v1/runs?limit=500"),
        "GET /v1/runs?state=SUCCEEDED&user=…": lambda: http.get("/v1/runs?state=SUCCEEDED&user=user7"),
        "GET /v1/runs/{run_id}": lambda: http.get("/v1/runs/run-000777"),
        "GET /v1/runs/{run_id}/events": lambda: http.get("/v1/runs/run-000777/events"),
        "GET /v1/queues": lambda: http.get("/v1/queues"),
        "GET /v1/usage?by=user": lambda: http.get("/v1/usage?by=user"),
        "GET /metrics": lambda: http.get("/metrics"),
        "GET /healthz": lambda: http.get("/healthz"),
        "GET /ui/runs": lambda: http.get("/ui/runs"),
        "GET /ui/runs?state=ended&user=…": lambda: http.get("/ui/runs?state=ended&user=user7"),
        "GET /ui/runs/{run_id}": lambda: http.get("/ui/runs/run-000777"),
        "GET /ui/usage, 30 days": lambda: http.get("/ui/usage"),
        "GET /ui/usage, all time": lambda: http.get("/ui/usage?days=all"),
    }


def _latency(questions: dict[str, Ask], turns: int) -> None:
    wide = max(map(len, questions))
    print(f"{'milliseconds':{wide}}  {'median':>8}  {'95 %':>8}  {'worst':>8}")
    for name, ask in questions.items():
        # The first ones open the connection and fill caches.
        for _ in range(3):
            ask().raise_for_status()
        taken = sorted(_timed(ask) for _ in range(turns))
        median, late = statistics.median(taken), taken[int(0.95 * (turns - 1))]
        has_goal = name.endswith("first page") or "/ui/" in name
        goal = f"   goal {GOAL_MS:.0f}: {'met' if late < GOAL_MS else 'missed'}" if has_goal else ""
        print(f"{name:{wide}}  {median:8.1f}  {late:8.1f}  {taken[-1]:8.1f}{goal}", flush=True)


def _timed(ask: Ask) -> float:
    began = time.perf_counter()
    ask().raise_for_status()
    return (time.perf_counter() - began) * 1000


def _memory(questions: dict[str, Ask], pid: int, requests: int) -> None:
    process, asks = psutil.Process(pid), [ask for name, ask in questions.items() if "usage" not in name]
    print(f"\nresident memory: {process.memory_info().rss / MIB:.1f} MiB, {process.num_threads()} threads")
    began = time.monotonic()
    for number in range(1, requests + 1):
        asks[number % len(asks)]().raise_for_status()
        if number % 1000 == 0:
            print(
                f"after {number} requests and {time.monotonic() - began:.0f} s of rounds: "
                f"{process.memory_info().rss / MIB:.1f} MiB, {process.num_threads()} threads",
                flush=True,
            )


if __name__ == "__main__":
    sys.exit(main())
