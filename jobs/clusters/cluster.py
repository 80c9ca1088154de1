"""A Ray cluster as the service uses it: its jobs, and what it can hold. `ray_jobs` implements it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from jobs.scheduler.feasibility import Capacity
from jobs.submission.ray_request import SubmitRequest

PENDING = "PENDING"
RUNNING = "RUNNING"
ENDED_STATUSES = frozenset({"SUCCEEDED", "FAILED", "STOPPED"})


@dataclass(frozen=True)
class JobInfo:
    """A job as Ray's Jobs API shows it.

    Attributes:
        known: Whether the cluster knows the job at all; one that was restarted does not.
        status: RUNNING only means that the entrypoint has started.
        exit_code: The entrypoint's; None while it runs, if it never ran, and for STOPPED.
        message: For a failure with the last lines of the log.
        error_type: Ray's JobErrorType, e.g. RUNTIME_ENV_SETUP_FAILURE; "" for none.
        ray_job_id: Ray's own number of the driver, "" before it has connected.
        uid: The run it belongs to, "" if it was not submitted by a ledger.
    """

    known: bool
    status: str = ""
    exit_code: int | None = None
    message: str = ""
    error_type: str = ""
    ray_job_id: str = ""
    uid: str = ""

    @property
    def ended(self) -> bool:
        """Whether the job has ended, or the cluster no longer knows it."""
        return not self.known or self.status in ENDED_STATUSES


class Cluster(Protocol):
    """One cluster. Every method raises ClusterError where it does not respond."""

    def submit(self, request: SubmitRequest) -> bool:
        """Uploads the package and starts the entrypoint; False where the cluster has this very submission already.

        Idempotent: the submission id is derived from run and attempt, and a cluster accepts each id once.

        Raises:
            RefusedError: the cluster rejects the request.
            ConflictError: another ledger's run has this submission id.
        """

    def job_info(self, submission_id: str) -> JobInfo:
        """What the cluster knows of a job now; `known` is False where it knows nothing."""

    def job_infos(self) -> dict[str, JobInfo]:
        """What the cluster knows of all submitted jobs, by submission id."""

    def capacity(self, grows_to: Mapping[str, float]) -> Capacity:
        """Logical resources of the nodes that are alive; its autoscaler, as configured, can grow it to `grows_to`."""

    def pending_bundles(self, ray_job_id: str) -> list[dict[str, float]]:
        """What a job's placement groups wait for; empty where nothing waits."""

    def log(self, submission_id: str, start: int, size: int) -> bytes:
        """What the entrypoint has printed: at most `size` bytes from byte `start` on. JobLostError: no such job."""

    def log_end(self, submission_id: str, lines: int, size: int) -> bytes:
        """The last lines that the job's entrypoint has printed, at most `size` bytes of them; raises as `log`."""

    def setup_log_end(self, submission_id: str, lines: int, size: int) -> bytes:
        """The last lines of the log of installing the job's packages, at most `size` bytes of them; b"" without one."""

    def stop(self, submission_id: str) -> None:
        """Requests a job's end; a second request changes nothing. ClusterError also where it does not know the job."""
