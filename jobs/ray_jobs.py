"""The only module that talks to Ray's Jobs API."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ray.job_submission import JobStatus, JobSubmissionClient

# A cluster that has just started answers so until the agent that takes jobs has come up.
NO_AGENT = "No available agent to submit job"
START_DEADLINE_S = 60.0
POLL_S = 0.5
# They tell of every file that is left out of an upload, and of the connection that closes after a job's last line.
TALKATIVE = (
    "ray.dashboard.modules.job.sdk",
    "ray.dashboard.modules.dashboard_sdk",
    "ray._private.runtime_env.packaging",
    "ray._private.runtime_env.working_dir",
)


@dataclass(frozen=True)
class JobEnd:
    """How a job ended.

    Attributes:
        succeeded: Whether Ray calls it SUCCEEDED.
        exit_code: The entrypoint's own exit code; Ray's command line gives 1 for every failure.
        message: Ray's words.
    """

    succeeded: bool
    exit_code: int
    message: str


class RayJobs:
    """The jobs of one cluster."""

    def __init__(self, address: str):
        """Connects.

        Args:
            address: URL of the dashboard, e.g. http://127.0.0.1:8265.
        """
        self._client = JobSubmissionClient(address)
        for name in TALKATIVE:
            logging.getLogger(name).setLevel(logging.ERROR)

    @classmethod
    def when_ready(cls, address: str) -> "RayJobs":
        """Connects to a cluster that is starting.

        Raises:
            ConnectionError: it has not come up in time.
        """
        end = time.monotonic() + START_DEADLINE_S
        while True:
            try:
                return cls(address)
            except (ConnectionError, RuntimeError):
                if time.monotonic() > end:
                    raise
            time.sleep(POLL_S)

    def submit(self, entrypoint: str, runtime_env: Mapping[str, Any]) -> str:
        """Uploads the working directory and starts the entrypoint on the cluster.

        Returns:
            The submission id.
        """
        end = time.monotonic() + START_DEADLINE_S
        while True:
            try:
                submission_id: str = self._client.submit_job(entrypoint=entrypoint, runtime_env=dict(runtime_env))
                return submission_id
            except RuntimeError as error:
                if NO_AGENT not in str(error) or time.monotonic() > end:
                    raise
            time.sleep(POLL_S)

    def follow(self, submission_id: str, show: Callable[[str], None]) -> JobEnd:
        """Shows the job's output as it comes, until it ends."""

        async def tail() -> None:
            async for text in self._client.tail_job_logs(submission_id):
                show(text)

        asyncio.run(tail())
        return self.end_of(submission_id)

    def end_of(self, submission_id: str) -> JobEnd:
        """How a job that has ended did so."""
        info = self._client.get_job_info(submission_id)
        succeeded = info.status == JobStatus.SUCCEEDED
        code = info.driver_exit_code
        return JobEnd(succeeded, 0 if succeeded else (code if code is not None else 1), info.message or "")

    def stop(self, submission_id: str) -> None:
        """Asks a job to stop."""
        self._client.stop_job(submission_id)
