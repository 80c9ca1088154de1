"""Interface of a Ray cluster for the service: jobs, logs and capacity. `ray_jobs` implements it."""

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
    """A job's state in Ray's Jobs API.

    Attributes:
        known: True if the cluster knows the job; after a restart, it does not.
        status: Ray's status; RUNNING only means that the entrypoint has started.
        exit_code: Exit code of the entrypoint; None while it runs, if it never ran, and for STOPPED.
        message: Ray's message; for a failure, includes the last lines of the log.
        error_type: Ray's JobErrorType, e.g. RUNTIME_ENV_SETUP_FAILURE; "" if there is none.
        ray_job_id: Ray's own id of the driver; "" before it has connected.
        uid: Uid of the job's run; "" if no ledger has submitted the job.
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
        """True if the job has ended, or the cluster no longer knows it."""
        return not self.known or self.status in ENDED_STATUSES


class Cluster(Protocol):
    """One cluster. Every method raises ClusterError if the cluster does not respond."""

    def submit(self, request: SubmitRequest) -> bool:
        """Uploads the package and starts the entrypoint; returns False if the cluster already has this submission.

        Idempotent: the submission id is derived from run and attempt, and a cluster accepts each id once.

        Raises:
            RefusedError: the cluster rejects the request.
            ConflictError: another ledger's run has this submission id.
        """

    def job_info(self, submission_id: str) -> JobInfo:
        """Returns the state of a job now; `known` is False if the cluster does not know the job."""

    def job_infos(self) -> dict[str, JobInfo]:
        """Returns the state of all submitted jobs, by submission id."""

    def capacity(self, grows_to: Mapping[str, float]) -> Capacity:
        """Returns the logical resources of living nodes, and `grows_to`, to which an autoscaler can grow them."""

    def pending_bundles(self, ray_job_id: str) -> list[dict[str, float]]:
        """Returns the bundles of a job's pending placement groups; empty if none is pending."""

    def log(self, submission_id: str, start: int, size: int, *, last_lines: int | None = None) -> bytes:
        """Returns up to `size` bytes, from byte `start` on, of the entrypoint's output or its last lines.

        Raises:
            JobLostError: the cluster does not know the job.
        """

    def setup_log_end(self, submission_id: str, lines: int, size: int) -> bytes:
        """Returns the last lines of the package installation's log, at most `size` bytes; b"" if there is none."""

    def stop(self, submission_id: str) -> None:
        """Requests a job's stop; repeated calls change nothing. Also raises ClusterError for an unknown job."""
