"""Clusters whose capacity is cached, so that a page of runs never waits long for a dashboard that hangs."""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from jobs.clusters.cluster import Cluster
from jobs.clusters.ray_jobs import RayJobs
from jobs.clusters.registry import Clusters
from jobs.errors import ClusterError
from jobs.scheduler.feasibility import Capacity

# A cached capacity is used for this long.
CACHE_TTL_S = 5.0
# A caller waits no longer than this for a new capacity; then a stale one is used, up to this age.
WAIT_S = 1.0
MAX_STALE_S = 60.0


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
        """Opens no connection yet, see Clusters; a caller waits `wait_s` for a new capacity."""
        super().__init__(grows_to, connect=connect, clock=clock)
        self._now, self._wait_s = clock, wait_s
        self._lock = threading.Lock()
        self._requests: dict[str, _Request] = {}
        self._sizes: dict[str, tuple[float, Capacity]] = {}

    def capacity(self, address: str) -> Capacity:
        with self._lock:
            size = self._sizes.get(address)
            if size is not None and self._now() - size[0] < CACHE_TTL_S:
                return size[1]
            request = self._requests.get(address)
            if request is None or request.done.is_set():
                request = self._requests[address] = _Request(self._now())
                # A daemon thread: a cluster that hangs does not delay the service's shutdown.
                threading.Thread(target=self._fetch, args=(address, request), name="cluster-size", daemon=True).start()
        request.done.wait(max(0.0, self._wait_s - (self._now() - request.sent_s)))
        if request.capacity is not None:
            return request.capacity
        if request.error is not None:
            raise _copy_of(request.error)
        if size is not None and self._now() - size[0] < MAX_STALE_S:
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
    """The same error without its traceback, which would keep the frames of all raisers alive."""
    return type(error)(str(error))
