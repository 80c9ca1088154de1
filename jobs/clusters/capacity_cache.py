"""Clusters whose capacity is cached, so that a page of runs never waits long for a dashboard that hangs."""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from jobs.clusters.cluster import Cluster
from jobs.clusters.ray_jobs import RayJobs
from jobs.clusters.registry import Clusters
from jobs.errors import ClusterError
from jobs.scheduler.policy import Capacity

# A capacity that is shown may be this old.
FRESH_S = 5.0
# Nobody waits longer than this for a capacity; an older one is used then.
WAIT_S = 1.0
OLD_S = 60.0


@dataclass
class _Request:
    """One request to a cluster, pending or done."""

    sent_s: float
    done: threading.Event = field(default_factory=threading.Event)
    capacity: Capacity | None = None
    error: ClusterError | None = None


class CachingClusters(Clusters):
    """Clusters for the API and the command line; the controller, which acts, has its own without a cache."""

    def __init__(
        self,
        grows_to: Mapping[str, Mapping[str, float]] | None = None,
        *,
        connect: Callable[[str], Cluster] = RayJobs,
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
        self._requests: dict[str, _Request] = {}
        self._sizes: dict[str, tuple[float, Capacity]] = {}

    def capacity(self, address: str) -> Capacity:
        """What the cluster has and can grow to, as of a few seconds ago.

        Raises:
            ClusterError: it does not respond, or has not yet.
        """
        with self._lock:
            size = self._sizes.get(address)
            if size is not None and self._now() - size[0] < FRESH_S:
                return size[1]
            request = self._requests.get(address)
            if request is None or request.done.is_set():
                request = self._requests[address] = _Request(self._now())
                # A daemon: a cluster that hangs does not keep a service that is told to end.
                threading.Thread(target=self._fetch, args=(address, request), name="cluster-size", daemon=True).start()
        request.done.wait(max(0.0, self._wait_s - (self._now() - request.sent_s)))
        if request.capacity is not None:
            return request.capacity
        if request.error is not None:
            raise _copy_of(request.error)
        if size is not None and self._now() - size[0] < OLD_S:
            return size[1]
        raise ClusterError(f"{address}: no response yet; is the cluster's head alive?")

    def _fetch(self, address: str, request: _Request) -> None:
        try:
            request.capacity = super().capacity(address)
            with self._lock:
                self._sizes[address] = (self._now(), request.capacity)
        except ClusterError as error:
            request.error = _copy_of(error)
        finally:
            request.done.set()


def _copy_of(error: ClusterError) -> ClusterError:
    """The same error without its past: an exception keeps the frames of all who ever raised it, with what they held."""
    return type(error)(str(error))
