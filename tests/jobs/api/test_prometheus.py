"""Metrics, as Prometheus reads them, from a ledger of each kind."""

import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from jobs.api.server.app import make_app
from jobs.api.server.prometheus import Figures, LedgerCollector, registry_of
from jobs.ledger import AttemptTotals
from jobs.model import AttemptState, Cause, RunState
from tests.jobs.api.backend_harness import QUEUES, BackendHarness, open_harness, served
from tests.jobs.ledger.builders import make_attempt

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]
NOW_S = 100_000.0


@pytest.fixture(params=["sqlite", "postgres"])
def empty_harness(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BackendHarness]:
    """A backend without runs, on a database of each kind."""
    database = request.getfixturevalue("postgres_url") if request.param == "postgres" else None
    with open_harness(tmp_path, database) as harness:
        yield harness


def scrape(harness: BackendHarness, now_s: float = NOW_S) -> Samples:
    """Everything that Prometheus would read."""
    headers = {"Authorization": f"Bearer {harness.token}"}
    with served(make_app(harness.backend, clock=lambda: now_s)) as url:
        response = httpx.get(f"{url}/metrics", headers=headers, timeout=30).raise_for_status()
    assert response.headers["content-type"].startswith("text/plain; version=")
    families = text_string_to_metric_families(response.text)
    return {(item.name, frozenset(item.labels.items())): item.value for family in families for item in family.samples}


def value(samples: Samples, name: str, **labels: str) -> float:
    """One sample."""
    return samples[name, frozenset(labels.items())]


def test_an_empty_ledger_shows_its_queues_at_zero(empty_harness: BackendHarness) -> None:
    samples = scrape(empty_harness)
    assert value(samples, "rayscribe_queue_length", queue="default") == 0
    assert value(samples, "rayscribe_runs", queue="small", state="TRAINING") == 0
    assert value(samples, "rayscribe_attempts_total", queue="small", cause="NODE_LOST") == 0
    assert value(samples, "rayscribe_wait_seconds_count", queue="small") == 0
    assert value(samples, "rayscribe_holds_lease") == 1
    assert value(samples, "process_resident_memory_bytes") > 0


@pytest.mark.integration
def test_runs_and_queue_lengths_are_counted_by_queue_and_state(empty_harness: BackendHarness) -> None:
    empty_harness.fill()
    empty_harness.add("more", queue="small")
    empty_harness.add("stray", queue="gone")
    samples = scrape(empty_harness)
    assert {value(samples, "rayscribe_runs", queue="default", state=state) for state in RunState} == {1}
    assert value(samples, "rayscribe_queue_length", queue="default") == 3
    assert value(samples, "rayscribe_queue_length", queue="small") == 1
    assert value(samples, "rayscribe_runs", queue="gone", state="QUEUED") == 1


def test_waiting_runs_are_told_apart_by_what_they_wait_for(empty_harness: BackendHarness) -> None:
    harness, now_s = empty_harness, time.time()
    for name, waited_s in (("early", 500.0), ("late", 100.0)):
        harness.add(name, submitted_s=now_s - waited_s, queued_s=now_s - waited_s)
    harness.add("after", depends_on=["late"], submitted_s=now_s - 50, queued_s=now_s - 50)
    samples = scrape(harness)
    cluster, other = {"queue": "default", "reason": "cluster"}, {"queue": "default", "reason": "dependency"}
    assert value(samples, "rayscribe_waiting_runs", **cluster) == 2, "the cluster is down"
    assert value(samples, "rayscribe_waiting_runs", **other) == 1
    assert value(samples, "rayscribe_waiting_runs", queue="small", reason="capacity") == 0
    # Seconds that the test itself takes are added.
    assert value(samples, "rayscribe_waiting_seconds", **cluster) >= 600
    assert 500 <= value(samples, "rayscribe_longest_wait_seconds", **cluster) < 600
    assert 50 <= value(samples, "rayscribe_longest_wait_seconds", **other) < 100


def test_hours_attempts_and_waits_are_those_of_the_attempts(empty_harness: BackendHarness) -> None:
    harness = empty_harness
    # Two GPUs and nine CPUs each: an hour that ended, and half an hour that still runs.
    harness.add_in_state("done", RunState.FAILED, submitted_s=1000.0)
    harness.add_in_state("live", RunState.TRAINING, submitted_s=NOW_S - 1830.0, user="bo")
    harness.add("waits")
    with harness.ledger.write() as writer:
        second = make_attempt("done", 2, created_s=50_000.0, gang=harness.ledger.run("done").gang)
        writer.open_attempt(second)
        writer.change_attempt("done", 2, state=AttemptState.ENDED, ended_s=50_900.0, cause=Cause.OUT_OF_MEMORY)
    samples = scrape(harness)
    ana, bo = {"queue": "default", "user": "ana"}, {"queue": "default", "user": "bo"}
    assert value(samples, "rayscribe_gpu_hours_total", **ana) == 2.5
    assert value(samples, "rayscribe_cpu_hours_total", **ana) == 11.25
    assert value(samples, "rayscribe_gpu_hours_total", **bo) == 1.0
    assert value(samples, "rayscribe_attempts_total", queue="default", cause="NODE_LOST") == 1
    assert value(samples, "rayscribe_attempts_total", queue="default", cause="OUT_OF_MEMORY") == 1
    # Each waited 30 s for its first attempt; the second attempt is no wait.
    assert value(samples, "rayscribe_wait_seconds_count", queue="default") == 2
    assert value(samples, "rayscribe_wait_seconds_sum", queue="default") == 60
    assert value(samples, "rayscribe_wait_seconds_bucket", queue="default", le="15.0") == 0
    assert value(samples, "rayscribe_wait_seconds_bucket", queue="default", le="60.0") == 2
    assert value(samples, "rayscribe_wait_seconds_bucket", queue="default", le="+Inf") == 2


def test_the_hours_are_those_that_usage_tells(empty_harness: BackendHarness) -> None:
    harness = empty_harness
    for number in range(20):
        harness.add_in_state(
            f"run-{number}", RunState.TRAINING, submitted_s=1000.0 + number / 7, user=f"user-{number % 3}"
        )
    samples = scrape(harness)
    for usage in harness.ledger.usage.hours("user", now_s=NOW_S):
        shown = value(samples, "rayscribe_gpu_hours_total", queue="default", user=usage.key)
        assert shown == pytest.approx(usage.gpu_hours, abs=1e-5)


@pytest.mark.integration
def test_counters_never_go_back_while_time_goes_on(empty_harness: BackendHarness) -> None:
    harness = empty_harness
    for number in range(7):
        harness.add_in_state(f"live-{number}", RunState.TRAINING, submitted_s=1000.0 + number * 0.1)
    hours = [
        value(scrape(harness, NOW_S + step / 10), "rayscribe_gpu_hours_total", queue="default", user="ana")
        for step in range(4)
    ]
    assert hours == sorted(hours)
    assert hours[0] < hours[-1]


def test_several_scrapers_at_once_cost_one_query() -> None:
    looks, times = 0, iter((0.0, 0.5, 1.0, 60.0))

    def read() -> Figures:
        nonlocal looks
        looks += 1
        return Figures({}, AttemptTotals({}, {}, {}, {}), {})

    registry = registry_of(LedgerCollector(read, QUEUES, lambda: True, clock=lambda: next(times)))
    logged = []
    for _ in range(4):
        assert list(registry.collect())
        logged.append(looks)
    assert logged == [1, 1, 1, 2]
