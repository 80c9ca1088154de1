"""All uses of Ray's private interfaces on the jobs side; a test fails when Ray changes one of them.

Private are the base class of Ray's HTTP clients, whose constructors replace the address that they are given by
RAY_API_SERVER_ADDRESS or RAY_ADDRESS; the method through which each request goes, which has no timeout; the headers
with which those clients authenticate; what the dashboard reads of jobs in the control store; and the names of loggers.
"""

import asyncio
import math
from collections.abc import Mapping
from typing import Any

import ray
import requests
from ray._private.authentication.http_token_authentication import get_auth_headers_if_auth_enabled
from ray._raylet import GcsClient  # type: ignore[attr-defined]  # compiled
from ray.dashboard.modules.dashboard_sdk import SubmissionClient
from ray.dashboard.modules.job.common import JobInfoStorageClient
from ray.dashboard.modules.job.utils import get_driver_jobs
from ray.exceptions import RayError
from ray.job_submission import JobDetails, JobInfo, JobSubmissionClient
from ray.util.state import StateApiClient
from ray.util.state.common import ListApiOptions, StateResource

from jobs.addresses import direct

# Ray's client waits without end for a dashboard that hangs, also between two pieces of a response.
RESPONSE_TIMEOUT_S = 30.0
# The most that Ray's state API returns.
MAX_ROWS = 10_000
# They log each file that is left out of an upload, and the connection that closes after a job's last line.
NOISY_LOGGERS = (
    "ray.dashboard.modules.job.sdk",
    "ray.dashboard.modules.dashboard_sdk",
    "ray._private.runtime_env.packaging",
    "ray._private.runtime_env.working_dir",
)


class JobsClient(JobSubmissionClient):
    """Ray's client of the Jobs API, for the cluster that it was given, and with a timeout."""

    def __init__(self, address: str, headers: Mapping[str, str] | None = None):
        SubmissionClient.__init__(self, address=address, headers=dict(headers or {}))
        self._client_ray_version = ray.__version__
        self._check_connection_and_version("2.0", f"{address} runs a Ray before 2.0, which has no Jobs API: update it")

    def _do_request(self, method: str, endpoint: str, **options: Any) -> requests.Response:
        options.setdefault("timeout", RESPONSE_TIMEOUT_S)
        return super()._do_request(method, endpoint, **options, **direct(self._address))


class StateClient(StateApiClient):
    """Ray's client of the state API, for the cluster that it was given."""

    def __init__(self, address: str, headers: Mapping[str, str] | None = None):
        SubmissionClient.__init__(
            self, address=address, headers={"Content-Type": "application/json", **(headers or {})}
        )

    def _do_request(self, method: str, endpoint: str, **options: Any) -> requests.Response:
        return super()._do_request(method, endpoint, **options, **direct(self._address))

    def all(self, kind: StateResource, *, detail: bool = False) -> list[Any]:
        """All rows of a kind, without a filter: for ray 2.60 a filter on its side truncates the response."""
        options = ListApiOptions(limit=MAX_ROWS, timeout=math.ceil(RESPONSE_TIMEOUT_S), detail=detail)
        return self.list(kind, options=options, raise_on_missing_output=True)


def token_headers() -> Mapping[str, str]:
    """The headers with which Ray's own clients would authenticate from here; empty where they have no token."""
    try:
        return get_auth_headers_if_auth_enabled({})
    except (RayError, RuntimeError, OSError):
        return {}


def jobs_in_control_store(gcs_address: str) -> list[str]:
    """Jobs and drivers that have not ended, by submission id or Ray's own, as a dashboard that responds has them.

    Args:
        gcs_address: host:port that drivers join.

    Raises:
        RayError: the control store does not respond, or refuses the token.
    """

    async def read() -> list[str]:
        client, timeout_s = GcsClient(address=gcs_address), math.ceil(RESPONSE_TIMEOUT_S)
        submitted = await JobInfoStorageClient(client).get_all_jobs(timeout=timeout_s)
        drivers, _ = await get_driver_jobs(client, timeout=timeout_s)
        jobs: dict[str, JobInfo | JobDetails] = {**submitted, **drivers}
        return [name for name, job in jobs.items() if not job.status.is_terminal()]

    return asyncio.run(read())
