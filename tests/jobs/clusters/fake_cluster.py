"""A cluster in memory, for tests: each job runs until its info was read a given number of times."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from jobs.clusters.cluster import JobInfo
from jobs.errors import ClusterError, ClusterGoneError, ConflictError, JobLostError
from jobs.scheduler.feasibility import Capacity
from jobs.submission.ray_request import METADATA_UID, SubmitRequest


@dataclass
class FakeJob:
    """One job, which ends after `lasts` reads of its info, as (status, exit code, message, error type)."""

    request: SubmitRequest
    lasts: int
    end: tuple[str, int | None, str, str]
    reads: int = 0
    stopped: bool = False


@dataclass
class FakeCluster:
    """A Cluster; see its contract in tests/jobs/clusters. Jobs are told apart by their submission ids."""

    cpus: float = 8.0
    ends: dict[str, tuple[str, int | None, str, str]] = field(default_factory=dict)  # others succeed
    lasts: dict[str, int] = field(default_factory=dict)  # reads until a job ends; 1 for others
    jobs: dict[str, FakeJob] = field(default_factory=dict)
    submits: list[str] = field(default_factory=list)  # every call, including repeated ones
    down: bool = False
    breaks: set[str] = field(default_factory=set)  # whose submit raises an unexpected error
    takes_no_jobs: bool = False
    gone: bool = False
    setup_logs: dict[str, str] = field(default_factory=dict)  # what installing prints; such a job stays PENDING

    def submit(self, request: SubmitRequest) -> bool:
        self._respond()
        if request.submission_id in self.breaks:
            raise TypeError("odd")
        if self.takes_no_jobs:
            raise JobLostError("http://fake accepts no jobs")
        self.submits.append(request.submission_id)
        if (job := self.jobs.get(request.submission_id)) is not None:
            if job.request.metadata[METADATA_UID] != request.metadata[METADATA_UID]:
                raise ConflictError(f"http://fake has a job {request.submission_id} that this ledger did not submit")
            return False
        end = self.ends.get(request.submission_id, ("SUCCEEDED", 0, "", ""))
        self.jobs[request.submission_id] = FakeJob(request, self.lasts.get(request.submission_id, 1), end)
        return True

    def job_info(self, submission_id: str) -> JobInfo:
        self._respond()
        job = self.jobs.get(submission_id)
        return self._read(job) if job is not None else JobInfo(known=False)

    def job_infos(self) -> dict[str, JobInfo]:
        self._respond()
        return {name: self._read(job) for name, job in self.jobs.items()}

    def _read(self, job: FakeJob) -> JobInfo:
        job.reads += 1
        uid = job.request.metadata[METADATA_UID]
        if job.stopped:
            return JobInfo(known=True, status="STOPPED", uid=uid)
        if job.reads <= job.lasts:
            status = "PENDING" if job.request.submission_id in self.setup_logs else "RUNNING"
            return JobInfo(known=True, status=status, uid=uid)
        status, code, message, error_type = job.end
        return JobInfo(known=True, status=status, exit_code=code, message=message, error_type=error_type, uid=uid)

    def capacity(self, grows_to: Mapping[str, float]) -> Capacity:
        self._respond()
        total = {"CPU": self.cpus}
        return Capacity(total=total, can_grow_to=grows_to, nodes=(total,))

    def pending_bundles(self, ray_job_id: str) -> list[dict[str, float]]:
        self._respond()
        return []

    def log(self, submission_id: str, start: int, size: int, *, last_lines: int | None = None) -> bytes:
        self._respond()
        self._job(submission_id)
        return f"{submission_id} prints\n".encode()[start : start + size]

    def setup_log_end(self, submission_id: str, lines: int, size: int) -> bytes:
        self._respond()
        return self.setup_logs.get(submission_id, "").encode()

    def stop(self, submission_id: str) -> None:
        self._respond()
        job = self._job(submission_id)
        job.stopped = job.stopped or job.reads <= job.lasts

    def _job(self, submission_id: str) -> FakeJob:
        if submission_id not in self.jobs:
            raise JobLostError(f"http://fake: job {submission_id} does not exist")
        return self.jobs[submission_id]

    def _respond(self) -> None:
        if self.gone:
            raise ClusterGoneError("http://fake was taken down")
        if self.down:
            raise ClusterError("http://fake: no response")
