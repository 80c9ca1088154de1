"""Metrics for Prometheus, read from the ledger on each scrape, so that none are lost if the service restarts.

Two services on one ledger report the same, so dashboards take `max by (queue, …)` over instances, not the sum.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from jobs.ledger import WAIT_BOUNDS_S, AttemptTotals, WaitTimeHistogram
from jobs.model import WAITING, Cause, RunState
from jobs.scheduler.decision import WaitCause, WaitTotals
from jobs.scheduler.limits import QueuesConfig
from jobs.service.service import Recent

Counts = Mapping[tuple[str, RunState], int]
# Scrapes within this time share one query. Seconds.
CACHE_TTL_S = 2.0


class Figures(NamedTuple):
    """Source of the metrics: runs by queue and state, sums over all attempts, and waiting runs by cause."""

    runs: Counts
    attempts: AttemptTotals
    waits: Mapping[tuple[str, WaitCause], WaitTotals]


class LedgerCollector(Collector):
    """Collects the ledger's metrics, and the scheduler's reasons why runs wait."""

    def __init__(
        self,
        read: Callable[[], Figures],
        queues: QueuesConfig,
        holds_lease: Callable[[], bool],
        *,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._read, self._queues, self._holds_lease = read, queues, holds_lease
        self._figures = Recent[Figures](CACHE_TTL_S, clock)

    def describe(self) -> list[Metric]:
        """Returns nothing, so that registering needs no database."""
        return []

    def collect(self) -> Iterator[Metric]:
        figures = self._figures.get(lambda _: self._read())
        names = sorted({*self._queues.queues, *(queue for queue, _ in figures.runs)})
        yield from _of_runs(figures.runs, names)
        yield from _of_waits(figures.waits, names)
        yield from _of_attempts(figures.attempts, names)
        yield GaugeMetricFamily(
            "rayscribe_holds_lease", "Whether this service holds the ledger's lease.", value=float(self._holds_lease())
        )


def registry_of(collector: LedgerCollector) -> CollectorRegistry:
    """Returns a registry with the ledger's metrics and those of this process."""
    registry = CollectorRegistry()
    registry.register(collector)
    ProcessCollector(registry=registry)
    return registry


def _gauge(name: str, text: str, labels: Sequence[str], samples: Iterable[tuple[list[str], float]]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    for of, value in samples:
        family.add_metric(of, value)
    return family


def _of_runs(counts: Counts, names: list[str]) -> Iterator[Metric]:
    runs = (([name, state], counts.get((name, state), 0)) for name in names for state in RunState)
    yield _gauge("rayscribe_runs", "Runs by queue and state.", ["queue", "state"], runs)
    lengths = (([name], sum(counts.get((name, state), 0) for state in WAITING)) for name in names)
    yield _gauge("rayscribe_queue_length", "Runs that wait to be admitted.", ["queue"], lengths)


def _of_waits(waits: Mapping[tuple[str, WaitCause], WaitTotals], names: list[str]) -> Iterator[Metric]:
    totals = {(name, cause): waits.get((name, cause), WaitTotals()) for name in names for cause in WaitCause}
    for metric, text, value in (
        ("rayscribe_waiting_runs", "Waiting runs, by reason.", "runs"),
        ("rayscribe_waiting_seconds", "Sum of the times that waiting runs have waited, by reason.", "seconds"),
        ("rayscribe_longest_wait_seconds", "Longest time that a waiting run has waited, by reason.", "longest_s"),
    ):
        samples = (([*of], getattr(total, value)) for of, total in totals.items())
        yield _gauge(metric, text, ["queue", "reason"], samples)


def _of_attempts(figures: AttemptTotals, names: list[str]) -> Iterator[Metric]:
    # Each counter begins at zero, since Prometheus detects no increase in one that begins at one.
    waits = HistogramMetricFamily(
        "rayscribe_wait_seconds", "From a run's submission to its first attempt.", labels=["queue"]
    )
    for queue in sorted({*names, *figures.waits}):
        wait = figures.waits.get(queue, WaitTimeHistogram())
        buckets = [(str(bound), within) for bound, within in zip(WAIT_BOUNDS_S, wait.within, strict=True)]
        waits.add_metric([queue], buckets=[*buckets, ("+Inf", wait.number)], sum_value=wait.seconds)
    yield waits
    ended = CounterMetricFamily("rayscribe_attempts", "Attempts that ended, by cause.", labels=["queue", "cause"])
    for queue, cause in sorted({*((name, cause) for name in names for cause in Cause), *figures.ended}):
        ended.add_metric([queue, cause], figures.ended.get((queue, cause), 0))
    yield ended
    for name, what, hours in (
        ("rayscribe_gpu_hours", "GPUs", figures.gpu_hours),
        ("rayscribe_cpu_hours", "CPUs", figures.cpu_hours),
    ):
        family = CounterMetricFamily(name, f"Hours of {what} that attempts have held.", labels=["queue", "user"])
        for (queue, user), value in sorted(hours.items()):
            family.add_metric([queue, user], value)
        yield family
