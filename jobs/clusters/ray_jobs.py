"""Implements `Cluster`; the only module that calls Ray's Jobs API and state API."""

import logging
import time
from collections.abc import Callable, Collection, Mapping
from typing import TypeVar
from urllib.parse import urlsplit

import requests
from ray.exceptions import AuthenticationError, RayError
from ray.job_submission import JobDetails
from ray.util.state.common import StateResource
from ray.util.state.exception import RayStateApiException

from jobs.addresses import cluster_name
from jobs.clusters import ray_private
from jobs.clusters.cluster import JobInfo
from jobs.clusters.managed.cluster_endpoint import connect
from jobs.clusters.ray_private import NOISY_LOGGERS, JobsClient, StateClient
from jobs.clusters.timeouts import CallTimeoutError, call_with_timeout
from jobs.errors import ClusterError, ConflictError, JobLostError, RefusedError
from jobs.scheduler.feasibility import Capacity
from jobs.submission.ray_request import METADATA_UID, SETUP_LOG, SubmitRequest
from trainers.distributed.local_ray import agent_clash

Result = TypeVar("Result")

# Error of a cluster that has just started, until its job agent runs.
NO_AGENT = "No available agent to submit job"
AGENT_CLASH = "Usually another Ray on the same host uses the agent's port, 52365 by default"
ALREADY_EXISTS = "already exists"
NOT_FOUND = "does not exist"
START_TIMEOUT_S = 60.0
# Longest start of Ray on a busy machine. Seconds.
UP_TIMEOUT_S = 180.0
# Submitting includes uploading the working directory.
SUBMIT_TIMEOUT_S = 300.0
POLL_S = 0.5

# HTTP statuses of a request that is not valid: bad request, too large, unprocessable. Not 404, since a proxy in front
# of a head that is being replaced also sends it.
REJECTED_STATUSES = (400, 413, 422)
# Without a token; with a wrong one.
UNAUTHORIZED_STATUSES = (401, 403)
UNREACHABLE = (ConnectionError, RuntimeError, OSError, requests.RequestException, RayStateApiException, RayError)


class RayJobs:
    """A Cluster at the URL of a dashboard, e.g. http://127.0.0.1:8265, or at cluster://NAME."""

    def __init__(self, address: str):
        """Connects; raises ClusterError if the cluster does not respond, or rejects the connection."""
        self.address = address
        self._no_agent_since_s: float | None = None
        for name in NOISY_LOGGERS:
            logging.getLogger(name).setLevel(logging.ERROR)
        self._endpoint = connect(address)
        self._client = self._call(lambda: JobsClient(self._endpoint.url, self._endpoint.headers))
        self._state = StateClient(self._endpoint.url, self._endpoint.headers)

    @classmethod
    def when_ready(cls, address: str) -> "RayJobs":
        """Connects to a cluster that is starting; raises ClusterError after UP_TIMEOUT_S."""
        end = time.monotonic() + UP_TIMEOUT_S
        while True:
            try:
                jobs = cls(address)
                jobs.capacity({})
                return jobs
            except ClusterError:
                if time.monotonic() > end:
                    raise
            time.sleep(POLL_S)

    def submit(self, request: SubmitRequest) -> bool:
        while True:
            try:
                self._call(lambda: self._start(request), timeout_s=SUBMIT_TIMEOUT_S)
                self._no_agent_since_s = None
                return True
            except ClusterError as error:
                if ALREADY_EXISTS in str(error):
                    self._check_same_run(request)
                    return False
                if NO_AGENT not in str(error):
                    raise
                self._check_starting(error)
            time.sleep(POLL_S)

    def job_info(self, submission_id: str) -> JobInfo:
        try:
            details: JobDetails = self._call(lambda: self._client.get_job_info(submission_id))
        except ClusterError as error:
            if NOT_FOUND in str(error):
                return JobInfo(known=False)
            raise
        return _job_info_of(details)

    def job_infos(self) -> dict[str, JobInfo]:
        jobs = self._call(self._client.list_jobs)
        return {item.submission_id: _job_info_of(item) for item in jobs if item.submission_id is not None}

    def working_jobs(self) -> list[str]:
        """Returns jobs and drivers that have not ended, by submission id or Ray's own id."""
        jobs = self._call(self._client.list_jobs)
        return [one.submission_id or one.job_id or "a driver" for one in jobs if not one.status.is_terminal()]

    def capacity(self, grows_to: Mapping[str, float]) -> Capacity:
        every = self._call(lambda: self._state.all(StateResource.NODES))
        each = tuple(
            {name: float(value) for name, value in (node.resources_total or {}).items() if not name.startswith("node:")}
            for node in every
            if node.state == "ALIVE"
        )
        if not each:
            raise ClusterError(f"{self.address}: no node has joined it yet; wait for its head to come up")
        names = sorted({name for node in each for name in node})
        total = {name: sum(node.get(name, 0.0) for node in each) for name in names}
        return Capacity(total=total, can_grow_to=grows_to, nodes=each)

    def pending_bundles(self, ray_job_id: str) -> list[dict[str, float]]:
        groups = self._call(lambda: self._state.all(StateResource.PLACEMENT_GROUPS, detail=True))
        mine = [group for group in groups if group.creator_job_id == ray_job_id and group.state == "PENDING"]
        bundles = [bundle for group in mine for bundle in group.bundles or []]
        return [dict(bundle.get("unit_resources", {})) for bundle in bundles]

    def log(self, submission_id: str, start: int, size: int, *, last_lines: int | None = None) -> bytes:
        def read() -> bytes:
            node_id = self._client.get_job_info(submission_id).driver_node_id
            if node_id is None:
                return b""  # the entrypoint has not started
            name = ray_private.driver_log(submission_id)
            return self._client.log_part(node_id, name, start=start, size=size, last_lines=last_lines)

        try:
            return self._call(read, timeout_s=ray_private.LOG_TIMEOUT_S)
        except ClusterError as error:
            if NOT_FOUND in str(error):
                raise JobLostError(str(error)) from error
            raise

    def setup_log_end(self, submission_id: str, lines: int, size: int) -> bytes:
        def read() -> bytes:
            heads = [node.node_id for node in self._state.all(StateResource.NODES) if node.is_head_node]
            name = SETUP_LOG.format(submission_id=submission_id)
            return self._client.log_part(heads[0], name, start=0, size=size, last_lines=lines) if heads else b""

        return self._call(read)

    def stop(self, submission_id: str) -> None:
        """Stops a job; a pending job stops when its entrypoint starts."""
        self._call(lambda: self._client.stop_job(submission_id))

    def _start(self, request: SubmitRequest) -> None:
        runtime_env = dict(request.runtime_env)
        if modules := runtime_env.get("py_modules"):
            # Ray itself uploads modules only as folders and wheels.
            runtime_env["py_modules"] = [self._client.upload(zip_path) for zip_path in modules]
        self._client.submit_job(
            entrypoint=request.entrypoint,
            submission_id=request.submission_id,
            runtime_env=runtime_env,
            metadata=dict(request.metadata),
        )

    def _check_starting(self, error: ClusterError) -> None:
        """Raises the error of a cluster without agents, after it has had time to start them."""
        now_s = time.monotonic()
        if self._no_agent_since_s is None:
            self._no_agent_since_s = now_s
        if now_s - self._no_agent_since_s > START_TIMEOUT_S:
            port = urlsplit(self._endpoint.url).port or 80
            clash = agent_clash(port) if self._endpoint.on_this_machine else None
            raise JobLostError(
                f"{self.address} accepts no jobs ({NO_AGENT}): its dashboard's agent does not listen on any node. "
                f"{clash or AGENT_CLASH}; start the cluster with free ports (rayscribe cluster up --local finds them, "
                "ray start takes --dashboard-agent-listen-port)"
            ) from error

    def _check_same_run(self, request: SubmitRequest) -> None:
        if self.job_info(request.submission_id).uid != request.metadata.get(METADATA_UID, ""):
            raise ConflictError(
                f"{self.address} has a job {request.submission_id} that this ledger did not submit: "
                "give the run another name (--set run.name=…)"
            )

    def _call(self, call: Callable[[], Result], timeout_s: float | None = None) -> Result:
        timeout_s = ray_private.RESPONSE_TIMEOUT_S if timeout_s is None else timeout_s
        try:
            self._endpoint.ensure()
            return call_with_timeout(call, timeout_s)
        except CallTimeoutError as error:
            raise ClusterError(
                f"{self.address}: no response in {timeout_s:.0f} s; is the cluster's head alive?"
            ) from error
        except UNREACHABLE as error:
            if isinstance(error, AuthenticationError) or _has_status(error, UNAUTHORIZED_STATUSES):
                raise ClusterError(f"{self.address} {_token_error(self.address, error)}") from error
            if _has_status(error, REJECTED_STATUSES):
                raise RefusedError(f"{self.address} rejected the request: {_last_line(error)}") from error
            raise ClusterError(
                f"{self.address}: {_last_line(error)}; check the address, and that the cluster is up"
            ) from error


def _job_info_of(details: JobDetails) -> JobInfo:
    return JobInfo(
        known=True,
        status=str(details.status.value),
        exit_code=details.driver_exit_code,
        message=details.message or "",
        error_type=str(details.error_type or ""),
        ray_job_id=details.job_id or "",
        uid=(details.metadata or {}).get(METADATA_UID, ""),
    )


def _has_status(error: Exception, statuses: Collection[int]) -> bool:
    return any(f"status code {status}" in str(error) for status in statuses)


def _token_error(address: str, error: Exception) -> str:
    """Returns the meaning of a response 401 or 403, and the fix."""
    missing = "Authentication required" in str(error) or _has_status(error, (401,))
    what = "requires a token, and none was sent (401)" if missing else "refuses the token (403)"
    if cluster_name(address) is not None:
        return f"{what}: it was restarted by someone else; repeat `rayscribe cluster up`, or end it with `cluster down`"
    return (
        f"{what}: set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH (or RAY_AUTH_TOKEN) to the cluster's token, here and "
        "for the service"
    )


def _last_line(error: BaseException) -> str:
    """Returns the last line of Ray's message, without its period; a traceback of the dashboard may come before it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip(" .")]
    return lines[-1][:500].rstrip(".") if lines else type(error).__name__
