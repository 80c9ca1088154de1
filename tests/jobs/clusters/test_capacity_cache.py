"""Sizes of clusters for those who look: soon, or an older one, or none; never a wait for one that hangs."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import pytest

from jobs.clusters.registry import CACHE_TTL_S, MAX_STALE_S, CachingClusters
from jobs.errors import ClusterError
from jobs.scheduler.feasibility import Capacity
from tests.jobs.clusters.fake_cluster import FakeCluster
from tests.jobs.ledger.builders import TIMEOUT_S, wait_until

ADDRESS = "http://head:8265"


class Slow(FakeCluster):
    """A cluster that answers when it is let."""

    def __init__(self, cpus: float = 8.0) -> None:
        super().__init__(cpus=cpus)
        self.free = threading.Event()
        self.asked = 0

    def capacity(self, grows_to: Mapping[str, float]) -> Capacity:
        self.asked += 1
        assert self.free.wait(TIMEOUT_S)
        return super().capacity(grows_to)


@contextmanager
def clusters_of(slow: Slow, now: Callable[[], float], wait_s: float = TIMEOUT_S) -> Iterator[CachingClusters]:
    """Clusters of which there is one."""
    try:
        yield CachingClusters(connect=lambda address: slow, clock=now, wait_s=wait_s)
    finally:
        slow.free.set()


def test_a_size_is_asked_for_once_while_it_is_fresh() -> None:
    slow, now_s = Slow(), 0.0
    slow.free.set()
    with clusters_of(slow, lambda: now_s) as clusters:
        assert clusters.capacity(ADDRESS).total == {"CPU": 8.0}
        slow.cpus = 16.0
        assert clusters.capacity(ADDRESS).total == {"CPU": 8.0}
        now_s = CACHE_TTL_S + 1
        assert clusters.capacity(ADDRESS).total == {"CPU": 16.0}
        assert slow.asked == 2


def test_a_cluster_that_hangs_is_asked_once_and_nobody_waits_for_it_again() -> None:
    slow = Slow()
    with clusters_of(slow, lambda: 0.0, wait_s=0.05) as clusters:
        for _ in range(3):
            with pytest.raises(ClusterError, match=ADDRESS):
                clusters.capacity(ADDRESS)
        assert slow.asked == 1
        slow.free.set()
        wait_until(lambda: _answers(clusters), "the late answer to be used")


def test_an_older_size_does_while_the_cluster_hangs_until_it_is_too_old() -> None:
    slow, now_s = Slow(), 0.0
    with clusters_of(slow, lambda: now_s, wait_s=0.05) as clusters:
        slow.free.set()
        wait_until(lambda: _answers(clusters), "the first answer")
        slow.free.clear()
        now_s = CACHE_TTL_S + 1
        assert clusters.capacity(ADDRESS).total == {"CPU": 8.0}
        now_s = MAX_STALE_S + 1
        with pytest.raises(ClusterError, match="no response yet"):
            clusters.capacity(ADDRESS)


def test_a_cluster_that_is_down_says_so_itself() -> None:
    slow = Slow()
    slow.free.set()
    slow.down = True
    with clusters_of(slow, lambda: 0.0) as clusters, pytest.raises(ClusterError, match="http://fake: no response"):
        clusters.capacity(ADDRESS)


def _answers(clusters: CachingClusters) -> bool:
    try:
        return bool(clusters.capacity(ADDRESS).total)
    except ClusterError:
        return False
