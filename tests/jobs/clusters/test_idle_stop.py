"""When a cluster without jobs ends itself."""

from collections.abc import Callable

import pytest

from jobs.clusters.idle_stop import watch
from jobs.errors import ClusterError

LIMIT_S = 600.0


class Cluster:
    """A cluster whose jobs, by minute, are given; the last number stays. It counts the minutes that it lives."""

    def __init__(self, *working: int | None):
        self.working, self.minute, self.failures = working, 0, 0

    def count(self) -> int:
        jobs = self.working[min(self.minute, len(self.working) - 1)]
        if jobs is None:
            raise ClusterError("no response")
        return jobs

    def end(self) -> None:
        if self.failures:
            self.failures -= 1
            raise ClusterError("the cloud says no")

    def run(self) -> int:
        """Gives the minute in which it ended."""

        def sleep(seconds: float) -> None:
            self.minute += 1

        clock: Callable[[], float] = lambda: self.minute * 60.0  # noqa: E731
        watch(self.count, self.end, limit_s=LIMIT_S, clock=clock, sleep=sleep)
        return self.minute


@pytest.mark.parametrize(
    ("working", "minute"),
    [
        ((0,), 10),
        ((0, 0, 0, 1, 0), 13),
        ((2, 1, 1, 1, 0), 13),
        # Nobody can submit to a dashboard that does not respond.
        ((1, None, None, 0), 10),
        ((1, *[None] * 8, 1, 0), 19),
    ],
)
def test_it_ends_ten_minutes_after_its_last_job(working: tuple[int | None, ...], minute: int) -> None:
    assert Cluster(*working).run() == minute


def test_an_end_that_fails_is_tried_again() -> None:
    cluster = Cluster(0)
    cluster.failures = 2
    assert cluster.run() == 12
