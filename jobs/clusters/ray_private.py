"""All uses of Ray's private interfaces on the jobs side; a test fails when Ray changes one of them.

Private are the base class of Ray's HTTP clients, whose constructors replace the address that they are given by
RAY_API_SERVER_ADDRESS or RAY_ADDRESS; the method through which each request goes, which has no timeout and reads each
response to its end; the headers with which those clients authenticate, and the token that they find; the name of a
driver's log; what the dashboard reads of jobs in the control store; the names of loggers; and what starts and ends the
machines of a cloud.
"""

import asyncio
import math
import os
from collections.abc import Iterable, Mapping
from typing import Any

import ray
import requests
from ray._private.authentication.http_token_authentication import get_auth_headers_if_auth_enabled
from ray._raylet import AuthenticationTokenLoader, GcsClient  # type: ignore[attr-defined]  # compiled
from ray.autoscaler._private.providers import _get_node_provider
from ray.dashboard.modules.dashboard_sdk import SubmissionClient
from ray.dashboard.modules.job.common import JOB_LOGS_PATH_TEMPLATE, JobInfoStorageClient
from ray.dashboard.modules.job.utils import get_driver_jobs
from ray.exceptions import RayError
from ray.job_submission import JobDetails, JobInfo, JobSubmissionClient
from ray.util.state import StateApiClient
from ray.util.state.common import ListApiOptions, StateResource

from jobs.addresses import direct

# Ray's client waits without end for a dashboard that hangs, also between two pieces of a response.
RESPONSE_TIMEOUT_S = 30.0
# Reading a part of a log: the state API has no offset, so what comes before it is transferred, too.
LOG_TIMEOUT_S = 60.0
LOG_BLOCK_BYTES = 1 << 16
# The state API's error about a job that has printed nothing yet.
NO_LOG = "file is not found"
ALL_LINES = -1
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

    def upload(self, package: str) -> str:
        """The URI by which the cluster has a zip; it is sent unless it is there."""
        return self._upload_package_if_needed(package, include_gitignore=False, is_file=True)

    def log_part(self, node_id: str, name: str, *, start: int, size: int, last_lines: int = ALL_LINES) -> bytes:
        """A part of a node's log, without a dashboard or a client that ever holds more of it; empty without the log.

        The Jobs API has only the complete log, which its agent reads into memory at once and answers nobody meanwhile.
        The state API sends the file in blocks.
        """
        query: dict[str, str | int] = {
            "node_id": node_id,
            "filename": name,
            "lines": last_lines,
            "timeout": math.ceil(LOG_TIMEOUT_S),
        }
        with requests.get(
            f"{self._address}/api/v0/logs/file",
            params=query,
            headers=self._headers,
            timeout=RESPONSE_TIMEOUT_S,
            stream=True,
            **direct(self._address),
        ) as response:
            if not response.ok:
                if NO_LOG in response.text:
                    return b""
                self._raise_error(response)
            return _part(response.iter_content(LOG_BLOCK_BYTES), start, size)


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


def driver_log(submission_id: str) -> str:
    """The name of a driver's log."""
    return JOB_LOGS_PATH_TEMPLATE.format(submission_id=submission_id)


def _part(blocks: Iterable[bytes], start: int, size: int) -> bytes:
    """At most `size` bytes of the joined blocks from `start` on; reads no block beyond them."""
    part, at = bytearray(), 0
    for block in blocks:
        part += block[max(0, start - at) :]
        at += len(block)
        if len(part) >= size:
            break
    return bytes(part[:size])


def token_headers() -> Mapping[str, str]:
    """The headers with which Ray's own clients would authenticate from here; empty where they have no token."""
    try:
        return get_auth_headers_if_auth_enabled({})
    except (RayError, RuntimeError, OSError):
        return {}


def token_headers_without_mode() -> Mapping[str, str] | None:
    """The headers with the token that is found here, where RAY_AUTH_MODE is not set; None where it is, or without one.

    `ray start` then closes a Ray by a token that it finds, which `ray.init` leaves in ~/.ray/auth_token; Ray's own
    clients send none.
    """
    if "RAY_AUTH_MODE" in os.environ:
        return None
    loader = AuthenticationTokenLoader.instance()
    try:
        return loader.get_token_for_http_header(ignore_auth_mode=True) or None
    except (RayError, RuntimeError, OSError):
        return None
    finally:
        # What it has loaded, a driver in this process would demand of a cluster without tokens, whose actors then die.
        loader.reset_cache()


def jobs_in_control_store(gcs_address: str) -> list[str]:
    """Jobs and drivers that have not ended, by submission id or Ray's own, as a dashboard that responds has them.

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


def node_provider(provider: dict[str, Any], cluster_name: str) -> Any:
    """What Ray's autoscaler starts and ends machines by, from those two fields of a file of `ray up`."""
    return _get_node_provider(provider, cluster_name, use_cache=False)
