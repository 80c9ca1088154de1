from typing import NoReturn

import pytest

from jobs.clusters.cluster import JobInfo
from jobs.clusters.fake_cluster import FakeCluster
from jobs.clusters.registry import MAX_PAUSE_S, PAUSE_S, Clusters
from jobs.errors import ClusterError


class Slow(FakeCluster):
    """One that takes its time to say nothing."""

    def __init__(self, clock: list[float]):
        super().__init__()
        self.clock, self.hangs_s, self.asked = clock, 0.0, 0

    def job_infos(self) -> dict[str, JobInfo]:
        return self._hang()

    def log(self, submission_id: str) -> bytes:
        return self._hang()

    def _hang(self) -> NoReturn:
        self.asked += 1
        self.clock[0] += self.hangs_s
        raise ClusterError("no answer")


def clusters_that_hang(hangs_s: float) -> tuple[Slow, Clusters]:
    """Clusters of which there is one, and its clock with it."""
    slow = Slow([0.0])
    slow.hangs_s = hangs_s
    return slow, Clusters(connect=lambda address: slow, clock=lambda: slow.clock[0])


@pytest.mark.parametrize(("hangs_s", "pause_s"), [(0.1, PAUSE_S), (10.0, 40.0), (300.0, MAX_PAUSE_S)])
def test_a_cluster_is_left_alone_the_longer_the_longer_it_hung(hangs_s: float, pause_s: float) -> None:
    slow, clusters = clusters_that_hang(hangs_s)
    for _ in range(3):
        with pytest.raises(ClusterError, match="no answer"):
            clusters.job_info("http://a", "sr-a1", "0")
    assert slow.asked == 1
    slow.clock[0] += pause_s - 0.01
    with pytest.raises(ClusterError):
        clusters.job_info("http://a", "sr-a1", "0")
    assert slow.asked == 1
    slow.clock[0] += 0.02
    with pytest.raises(ClusterError):
        clusters.job_info("http://a", "sr-a1", "0")
    assert slow.asked == 2


@pytest.mark.parametrize(("hangs_s", "asked"), [(0.1, 3), (30.0, 1)])
def test_one_job_without_a_log_says_nothing_of_the_others_unless_it_hung(hangs_s: float, asked: int) -> None:
    slow, clusters = clusters_that_hang(hangs_s)
    for _ in range(3):
        with pytest.raises(ClusterError, match="no answer"):
            clusters.log("http://a", "sr-a1")
    assert slow.asked == asked
