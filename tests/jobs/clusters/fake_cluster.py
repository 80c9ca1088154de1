"""A cluster at our own seam: it takes jobs as Ray's Jobs API does, and runs each for as many looks as it is told."""

from dataclasses import dataclass, field

from jobs.clusters.job_info import JobInfo
from jobs.errors import ClusterError
from jobs.scheduler.policy import Capacity
from jobs.submission.ray_request import METADATA_UID, SubmitRequest


@dataclass
class FakeJob:
    """One job.

    Attributes:
        request: What was asked for.
        looks: How often it has been looked at.
        end: What it ends with: (status, exit code, message, error type).
        lasts: Looks until it ends; more than there will be for one that never does.
    """

    request: SubmitRequest
    lasts: int
    end: tuple[str, int | None, str, str]
    looks: int = 0
    stopped: bool = False


@dataclass
class FakeCluster:
    """What RayJobs offers.

    Attributes:
        cpus: What it has.
        ends: Ends of attempts by submission id; ("SUCCEEDED", 0, "", "") for those not named.
        lasts: Looks until a job ends, by submission id; 1 for those not named.
        jobs: All that were submitted.
        submits: Every call of submit, refused ones too.
        down: Whether it answers nothing.
        breaks: Submission ids whose submit fails in a way that nobody foresaw.
    """

    cpus: float = 8.0
    ends: dict[str, tuple[str, int | None, str, str]] = field(default_factory=dict)
    lasts: dict[str, int] = field(default_factory=dict)
    jobs: dict[str, FakeJob] = field(default_factory=dict)
    submits: list[str] = field(default_factory=list)
    down: bool = False
    breaks: set[str] = field(default_factory=set)

    def submit(self, request: SubmitRequest) -> bool:
        """Takes each submission id once."""
        self._answer()
        if request.submission_id in self.breaks:
            raise TypeError("odd")
        self.submits.append(request.submission_id)
        if request.submission_id in self.jobs:
            return False
        end = self.ends.get(request.submission_id, ("SUCCEEDED", 0, "", ""))
        self.jobs[request.submission_id] = FakeJob(request, self.lasts.get(request.submission_id, 1), end)
        return True

    def job_infos(self) -> dict[str, JobInfo]:
        """All jobs; each comes nearer to its end by being looked at."""
        self._answer()
        return {name: self._sight(job) for name, job in self.jobs.items()}

    def _sight(self, job: FakeJob) -> JobInfo:
        job.looks += 1
        uid = job.request.metadata[METADATA_UID]
        if job.stopped:
            return JobInfo(known=True, status="STOPPED", uid=uid)
        if job.looks <= job.lasts:
            return JobInfo(known=True, status="RUNNING", uid=uid)
        status, code, message, error_type = job.end
        return JobInfo(known=True, status=status, exit_code=code, message=message, error_type=error_type, uid=uid)

    def capacity(self, grows_to: object) -> Capacity:
        """One node."""
        self._answer()
        return Capacity(total={"CPU": self.cpus}, can_grow_to={"CPU": self.cpus}, nodes=({"CPU": self.cpus},))

    def pending_bundles(self, ray_job_id: str) -> list[dict[str, float]]:
        """Nothing waits."""
        return []

    def log(self, submission_id: str) -> bytes:
        """What the job printed."""
        self._answer()
        return f"{submission_id} prints\n".encode()

    def stop(self, submission_id: str) -> None:
        """Stops a job."""
        self._answer()
        self.jobs[submission_id].stopped = True

    def close(self) -> None:
        """Nothing to let go of."""

    def _answer(self) -> None:
        if self.down:
            raise ClusterError("http://fake: no answer")
