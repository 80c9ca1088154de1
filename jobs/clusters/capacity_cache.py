"""Clusters whose size is known at once, or soon, or not: a page of runs never waits for a dashboard that hangs."""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from jobs.clusters.ray_jobs import RayJobs
from jobs.clusters.registry import Clusters
from jobs.errors import ClusterError
from jobs.scheduler.policy import Capacity

# Shown sizes may be this old. The controller, who decides, asks for itself.
FRESH_S = 5.0
# Longer than this nobody waits for a size; then an older one will do.
WAIT_S = 1.0
OLD_S = 60.0


@dataclass
class _Question:
    """One question to a cluster, under way or answered."""

    asked_s: float
    done: threading.Event = field(default_factory=threading.Event)
    capacity: Capacity | None = None
    error: ClusterError | None = None


class QuickClusters(Clusters):
    """Clusters for those who look, beside the ones for the controller who acts."""

    def __init__(
        self,
        grows_to: Mapping[str, Mapping[str, float]] | None = None,
        *,
        connect: Callable[[str], RayJobs] = RayJobs,
        clock: Callable[[], float] = time.monotonic,
        wait_s: float = WAIT_S,
    ):
        """Connects to nothing yet; see Clusters.

        Args:
            grows_to: What each cluster's autoscaler may make of it, by address.
            connect: Opens a cluster.
            clock: Seconds from any origin.
            wait_s: How long to wait for a size.
        """
        super().__init__(grows_to, connect=connect, clock=clock)
        self._now, self._wait_s = clock, wait_s
        self._lock = threading.Lock()
        self._questions: dict[str, _Question] = {}
        self._sizes: dict[str, tuple[float, Capacity]] = {}

    def capacity(self, address: str) -> Capacity:
        """What the cluster has and can grow to, as of a few seconds ago.

        Raises:
            ClusterError: it does not answer, or has not yet.
        """
        with self._lock:
            size = self._sizes.get(address)
            if size is not None and self._now() - size[0] < FRESH_S:
                return size[1]
            question = self._questions.get(address)
            if question is None or question.done.is_set():
                question = self._questions[address] = _Question(self._now())
                # A daemon: a cluster that hangs does not keep a service that is told to end.
                threading.Thread(
                    target=self._answer, args=(address, question), name="cluster-size", daemon=True
                ).start()
        question.done.wait(max(0.0, self._wait_s - (self._now() - question.asked_s)))
        if question.capacity is not None:
            return question.capacity
        if question.error is not None:
            raise _anew(question.error)
        if size is not None and self._now() - size[0] < OLD_S:
            return size[1]
        raise ClusterError(f"{address}: no answer yet; is the cluster's head alive?")

    def _answer(self, address: str, question: _Question) -> None:
        try:
            question.capacity = super().capacity(address)
            with self._lock:
                self._sizes[address] = (self._now(), question.capacity)
        except ClusterError as error:
            question.error = _anew(error)
        finally:
            question.done.set()


def _anew(error: ClusterError) -> ClusterError:
    """The same error without its past: an exception keeps the frames of all who ever raised it, with what they held."""
    return type(error)(str(error))
