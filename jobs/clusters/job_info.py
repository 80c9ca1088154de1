"""What Ray says of one job at one moment."""

from dataclasses import dataclass

PENDING = "PENDING"
RUNNING = "RUNNING"
OVER = frozenset({"SUCCEEDED", "FAILED", "STOPPED"})


@dataclass(frozen=True)
class JobInfo:
    """A job as Ray's Jobs API shows it.

    Attributes:
        known: Whether the cluster knows the job at all; one that was started anew does not.
        status: PENDING, RUNNING, SUCCEEDED, FAILED or STOPPED. RUNNING says only that the entrypoint has started.
        exit_code: The entrypoint's; None while it runs, where it never ran, and for STOPPED.
        message: Ray's words; for a failure with the last lines of the log.
        error_type: Ray's JobErrorType, e.g. RUNTIME_ENV_SETUP_FAILURE; "" for none.
        ray_job_id: Ray's own number of the driver, "" before it has joined.
        uid: The run it belongs to, "" where it is not ours.
    """

    known: bool
    status: str = ""
    exit_code: int | None = None
    message: str = ""
    error_type: str = ""
    ray_job_id: str = ""
    uid: str = ""

    @classmethod
    def unknown(cls) -> "JobInfo":
        """A job that the cluster does not know."""
        return cls(known=False)

    @property
    def over(self) -> bool:
        """Whether the job has ended, or is not there any more."""
        return not self.known or self.status in OVER
