"""Interface of a Ray cluster, as the service uses it: jobs and capacity. `ray_jobs` implements it."""

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
        known: True if the cluster knows the job; one that was restarted does not.
        status: RUNNING only means that the entrypoint has started.
        exit_code: The entrypoint's; None while it runs, if it never ran, and for STOPPED.
        message: For a failure, includes the last lines of the log.
        error_type: Ray's JobErrorType, e.g. RUNTIME_ENV_SETUP_FAILURE; "" if there is none.
        ray_job_id: Ray's own number of the driver, "" before it has connected.
        uid: The run to which the job belongs, "" if it was not submitted by a ledger.
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
    """One cluster. Every method raises ClusterError if it does not respond."""

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
        """Returns the logical resources of living nodes; the configured autoscaler can grow them to `grows_to`."""

    def pending_bundles(self, ray_job_id: str) -> list[dict[str, float]]:
        """Returns the bundles for which a job's placement groups wait; empty if none waits."""

    def log(self, submission_id: str, start: int, size: int, *, last_lines: int | None = None) -> bytes:
        """Returns up to `size` bytes of the entrypoint's output, or of its last lines, from `start` on.

        Raises:
            JobLostError: the cluster does not know the job.
        """

    def setup_log_end(self, submission_id: str, lines: int, size: int) -> bytes:
        """Returns the last lines of the package installation's log, at most `size` bytes; b"" if there is none."""

    def stop(self, submission_id: str) -> None:
        """Requests a job's end; a second request changes nothing. Raises ClusterError also for an unknown job."""
