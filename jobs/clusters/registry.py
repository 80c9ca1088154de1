"""The clusters of a controller: connected when first needed, read once a round, left alone while they are down."""

import math
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from jobs.clusters.cluster import Cluster, JobInfo
from jobs.clusters.ray_jobs import RayJobs
from jobs.errors import ClusterError
from jobs.scheduler.policy import Capacity
from jobs.submission.ray_request import SubmitRequest

Result = TypeVar("Result")

# A cluster that did not respond is called again after this long, and one that hung after so many times as long as it
# hung, so that others need not wait for it.
PAUSE_S = 5.0
TIMES_AS_LONG = 4.0
LONGEST_PAUSE_S = 120.0
HUNG_S = 5.0


class Clusters:
    """Ray clusters by the URL of their dashboard."""

    def __init__(
        self,
        grows_to: Mapping[str, Mapping[str, float]] | None = None,
        *,
        connect: Callable[[str], Cluster] = RayJobs,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Connects to nothing yet.

        Args:
            grows_to: What each cluster's autoscaler may make of it, by address.
            connect: Opens a cluster.
            clock: Seconds from any origin.
        """
        self._grows_to, self._connect, self._clock = grows_to or {}, connect, clock
        self._open: dict[str, Cluster] = {}
        self._down: dict[str, tuple[float, str]] = {}
        self._job_infos: dict[str, dict[str, JobInfo]] = {}

    def begin_round(self) -> None:
        """Drops the job infos of the last round."""
        self._job_infos = {}

    def job_info(self, address: str, submission_id: str, uid: str) -> JobInfo:
        """What the cluster knows of a run's job, as of this round; nothing, where another run has its name there.

        Raises:
            ClusterError: it does not respond.
        """
        if address not in self._job_infos:
            self._job_infos[address] = self._call(address, lambda cluster: cluster.job_infos(), of_all=True)
        found = self._job_infos[address].get(submission_id)
        return found if found is not None and found.uid == uid else JobInfo.unknown()

    def capacity(self, address: str) -> Capacity:
        """What the cluster has and can grow to.

        Raises:
            ClusterError: it does not respond.
        """
        return self._call(address, lambda cluster: cluster.capacity(self._grows_to.get(address, {})), of_all=True)

    def submit(self, request: SubmitRequest) -> bool:
        """Starts an attempt, once however often it is asked for; see `RayJobs.submit`."""
        return self._call(request.address, lambda cluster: cluster.submit(request))

    def stop(self, address: str, submission_id: str) -> None:
        """Asks a job to stop."""
        self._call(address, lambda cluster: cluster.stop(submission_id))

    def log(self, address: str, submission_id: str) -> bytes:
        """The entrypoint's whole output so far."""
        return self._call(address, lambda cluster: cluster.log(submission_id))

    def pending_bundles(self, address: str, ray_job_id: str) -> list[dict[str, float]]:
        """What a job waits for."""
        return self._call(address, lambda cluster: cluster.pending_bundles(ray_job_id)) if ray_job_id else []

    def _call(self, address: str, call: Callable[[Cluster], Result], *, of_all: bool = False) -> Result:
        """Calls a cluster, unless it is being left alone.

        It is left alone after a call about all of it has failed, or any has hung: a missing log of one job means
        nothing for the others.
        """
        again_s, message = self._down.get(address, (-math.inf, ""))
        began_s = self._clock()
        if began_s < again_s:
            # A new one each time: an exception that is raised again keeps the frames of all who raised it.
            raise ClusterError(message)
        try:
            if address not in self._open:
                self._open[address] = self._connect(address)
            result = call(self._open[address])
        except ClusterError as error:
            now_s = self._clock()
            took_s = now_s - began_s
            if of_all or took_s > HUNG_S or address not in self._open:
                pause_s = max(PAUSE_S, min(LONGEST_PAUSE_S, TIMES_AS_LONG * took_s))
                self._down[address] = (now_s + pause_s, str(error))
            raise
        self._down.pop(address, None)
        return result
