"""The clusters of a controller: connects on first use, reads jobs once per round, and pauses calls after failures.

For clients that show runs, capacity is cached, so that a page of runs never waits long for a dashboard that hangs.
"""

import math
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from typing import TypeVar

import yaml

from jobs.addresses import cluster_name
from jobs.clusters.cluster import Cluster, JobInfo
from jobs.clusters.managed.cluster_record import RayUpRecord, Record, find_record
from jobs.clusters.managed.ray_up_content import on_own_hosts
from jobs.clusters.ray_jobs import RayJobs
from jobs.clusters.timeouts import in_thread
from jobs.errors import ClusterError
from jobs.scheduler.feasibility import Capacity
from jobs.submission.ray_request import SubmitRequest

Result = TypeVar("Result")

# A cluster that did not respond is called again after PAUSE_S; a cluster that hung, after PAUSE_FACTOR times the time
# that it hung, so that others need not wait for it.
PAUSE_S = 5.0
PAUSE_FACTOR = 4.0
MAX_PAUSE_S = 120.0
SLOW_CALL_S = 5.0
# Age up to which a cached capacity is used.
CACHE_TTL_S = 5.0
# Longest wait of a caller for a new capacity; then an old one is used, up to an age of MAX_STALE_S.
WAIT_S = 1.0
MAX_STALE_S = 60.0


def growth_of(address: str) -> dict[str, float]:
    """Returns the largest amount of each logical resource that a cloud's cluster can have, summed over its node types.

    Computed from its file, since pools may have no living nodes, and Ray has no API for it. Node types without
    resources in the file are left out. Empty if the cluster was not started from this machine, or does not grow, e.g.
    on own hosts.
    """
    most: dict[str, float] = {}
    record = _record_of(address)
    if record is None:
        return most
    try:
        content = yaml.safe_load(record.config_path.read_text(encoding="utf-8"))
        for kind, node in () if on_own_hosts(content) else content["available_node_types"].items():
            count = 1 if kind == content["head_node_type"] else node.get("max_workers", 0)
            for resource, each in node.get("resources", {}).items():
                most[resource] = most.get(resource, 0.0) + float(count * each)
    except (OSError, yaml.YAMLError, LookupError, TypeError, ValueError, AttributeError):
        return {}
    return most


def has_release(address: str, release: str) -> bool:
    """Returns True if all nodes of a cluster are known to have this version of Rayscribe.

    A local Ray has the version that started it; with a rendered file, each node checks its version before it joins.
    """
    record = _record_of(address)
    if not isinstance(record, RayUpRecord):
        return record is not None and record.release == release
    try:
        content = yaml.safe_load(record.config_path.read_text(encoding="utf-8"))
        return any(f'"rayscribe": "{release}"' in line for line in content["setup_commands"])
    except (OSError, yaml.YAMLError, LookupError, TypeError):
        return False


def _record_of(address: str) -> Record | None:
    name = cluster_name(address)
    return find_record(name) if name is not None else None


class Clusters:
    """Ray clusters by the URL of their dashboard. A method raises ClusterError if a cluster does not respond."""

    def __init__(
        self,
        grows_to: Mapping[str, Mapping[str, float]] | None = None,
        *,
        connect: Callable[[str], Cluster] = RayJobs,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Opens no connection yet; `grows_to` has the resources to which autoscalers can grow clusters, by address."""
        self._grows_to, self._connect, self._clock = grows_to or {}, connect, clock
        self._open: dict[str, Cluster] = {}
        self._down: dict[str, tuple[float, ClusterError]] = {}
        self._job_infos: dict[str, dict[str, JobInfo]] = {}

    def begin_round(self) -> None:
        """Drops the job infos of the last round."""
        self._job_infos = {}

    def job_info(self, address: str, submission_id: str, uid: str) -> JobInfo:
        """Returns the state of a run's job in this round; `known` is False if another run's job has this id."""
        if address not in self._job_infos:
            self._job_infos[address] = self._call(address, lambda cluster: cluster.job_infos(), whole_cluster=True)
        found = self._job_infos[address].get(submission_id)
        return found if found is not None and found.uid == uid else JobInfo(known=False)

    def capacity(self, address: str) -> Capacity:
        return self._call(address, lambda cluster: cluster.capacity(self._growth(address)), whole_cluster=True)

    def submit(self, request: SubmitRequest) -> bool:
        told = request.growing_to(self._growth(request.address))
        return self._call(request.address, lambda cluster: cluster.submit(told))

    def stop(self, address: str, submission_id: str) -> None:
        self._call(address, lambda cluster: cluster.stop(submission_id))

    def log(self, address: str, submission_id: str, start: int, size: int, *, last_lines: int | None = None) -> bytes:
        """Returns a part of the entrypoint's output so far; may take a minute, and never pauses the cluster."""
        return self._call(
            address, lambda cluster: cluster.log(submission_id, start, size, last_lines=last_lines), pauses=False
        )

    def setup_log_end(self, address: str, submission_id: str, lines: int, size: int) -> bytes:
        return self._call(address, lambda cluster: cluster.setup_log_end(submission_id, lines, size))

    def pending_bundles(self, address: str, ray_job_id: str) -> list[dict[str, float]]:
        return self._call(address, lambda cluster: cluster.pending_bundles(ray_job_id)) if ray_job_id else []

    def _growth(self, address: str) -> dict[str, float]:
        return {**growth_of(address), **self._grows_to.get(address, {})}

    def _call(
        self, address: str, call: Callable[[Cluster], Result], *, whole_cluster: bool = False, pauses: bool = True
    ) -> Result:
        """Calls a cluster; raises its last ClusterError while it is paused.

        A cluster is paused after a failed call with `whole_cluster`, or a failed call with `pauses` that hung. Calls
        for logs have no `pauses`, since one job's missing or large log says nothing about others.
        """
        retry_at_s, before = self._down.get(address, (-math.inf, ClusterError("")))
        start_s = self._clock()
        if start_s < retry_at_s:
            raise _copy_of(before)
        cluster = self._open.get(address)
        try:
            if cluster is None:
                cluster = self._open[address] = self._connect(address)
            result = call(cluster)
        except ClusterError as error:
            if cluster_name(address) is not None:
                # The cluster may have been restarted with another port and token.
                self._open.pop(address, None)
            if cluster is not None and not pauses:
                raise
            now_s = self._clock()
            took_s = now_s - start_s
            if whole_cluster or took_s > SLOW_CALL_S or address not in self._open:
                pause_s = max(PAUSE_S, min(MAX_PAUSE_S, PAUSE_FACTOR * took_s))
                self._down[address] = (now_s + pause_s, _copy_of(error))
            raise
        self._down.pop(address, None)
        return result


class CachingClusters(Clusters):
    """Clusters with cached capacity, for the API and the command line; the controller needs current values."""

    def __init__(
        self,
        grows_to: Mapping[str, Mapping[str, float]] | None = None,
        *,
        connect: Callable[[str], Cluster] = RayJobs,
        clock: Callable[[], float] = time.monotonic,
        wait_s: float = WAIT_S,
    ):
        """Opens no connection yet, see Clusters; a caller waits up to `wait_s` for a new capacity."""
        super().__init__(grows_to, connect=connect, clock=clock)
        self._wait_s = wait_s
        self._lock = threading.Lock()
        # By address: time of the request for the capacity, and its future.
        self._requests: dict[str, tuple[float, Future[Capacity]]] = {}
        self._sizes: dict[str, tuple[float, Capacity]] = {}

    def capacity(self, address: str) -> Capacity:
        with self._lock:
            size = self._sizes.get(address)
            if size is not None and self._clock() - size[0] < CACHE_TTL_S:
                return size[1]
            sent_s, answer = self._requests.get(address, (0.0, None))
            if answer is None or answer.done():
                sent_s, answer = self._clock(), in_thread(lambda: self._fetch(address))
                self._requests[address] = sent_s, answer
        wait([answer], max(0.0, self._wait_s - (self._clock() - sent_s)))
        if answer.done():
            if (error := answer.exception()) is None:
                return answer.result()
            raise _copy_of(error) if isinstance(error, ClusterError) else ClusterError(f"{address}: {error}")
        if size is not None and self._clock() - size[0] < MAX_STALE_S:
            return size[1]
        raise ClusterError(f"{address}: no response yet; is the cluster's head alive?")

    def _fetch(self, address: str) -> Capacity:
        capacity = super().capacity(address)
        with self._lock:
            self._sizes[address] = (self._clock(), capacity)
        return capacity


def _copy_of(error: ClusterError) -> ClusterError:
    """Returns a copy of the error without its traceback, which would keep frames alive."""
    return type(error)(str(error))
