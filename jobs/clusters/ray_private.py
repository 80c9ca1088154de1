"""All uses of Ray's private interfaces in `jobs`; a test fails if Ray changes one of them.

They are: the base class of Ray's HTTP clients, whose constructors replace the given address by RAY_API_SERVER_ADDRESS
or RAY_ADDRESS; its request method, which has no timeout and reads each response to its end; the headers with which
those clients authenticate, and the token that they find; the name of a driver's log; the jobs that the dashboard
reads from the control store; the names of loggers; and the node provider, which starts and terminates machines of a
cloud.
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

# Ray's client has no timeout of its own for a dashboard that hangs, before or during a response. Seconds.
RESPONSE_TIMEOUT_S = 30.0
# Timeout of reading a part of a log; the state API has no offset, so everything before the part is transferred too.
LOG_TIMEOUT_S = 60.0
LOG_BLOCK_BYTES = 1 << 16
# Error of the state API for a job that has printed nothing yet.
NO_LOG = "file is not found"
# Limit of Ray's state API.
MAX_ROWS = 10_000
# These loggers report each file that is left out of an upload, and the connection that closes after a job's last
# line.
NOISY_LOGGERS = (
    "ray.dashboard.modules.job.sdk",
    "ray.dashboard.modules.dashboard_sdk",
    "ray._private.runtime_env.packaging",
    "ray._private.runtime_env.working_dir",
)


class JobsClient(JobSubmissionClient):
    """Ray's client of the Jobs API, for the given address, with a timeout."""

    def __init__(self, address: str, headers: Mapping[str, str] | None = None):
        SubmissionClient.__init__(self, address=address, headers=dict(headers or {}))
        self._client_ray_version = ray.__version__
        self._check_connection_and_version("2.0", f"{address} runs a Ray before 2.0, which has no Jobs API: update it")

    def _do_request(self, method: str, endpoint: str, **options: Any) -> requests.Response:
        options.setdefault("timeout", RESPONSE_TIMEOUT_S)
        return super()._do_request(method, endpoint, **options, **direct(self._address))

    def upload(self, package: str) -> str:
        """Uploads a zip unless the cluster has it; returns its URI on the cluster."""
        return self._upload_package_if_needed(package, include_gitignore=False, is_file=True)

    def log_part(self, node_id: str, name: str, *, start: int, size: int, last_lines: int | None = None) -> bytes:
        """Returns a part of a node's log; b"" if there is no log. Neither side reads more of it into memory at once.

        The Jobs API has only the complete log, which its agent reads into memory at once and blocks meanwhile. The
        state API sends the file in blocks.
        """
        query: dict[str, str | int] = {
            "node_id": node_id,
            "filename": name,
            "lines": -1 if last_lines is None else last_lines,
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
    """Ray's client of the state API, for the given address."""

    def __init__(self, address: str, headers: Mapping[str, str] | None = None):
        SubmissionClient.__init__(
            self, address=address, headers={"Content-Type": "application/json", **(headers or {})}
        )

    def _do_request(self, method: str, endpoint: str, **options: Any) -> requests.Response:
        return super()._do_request(method, endpoint, **options, **direct(self._address))

    def all(self, kind: StateResource, *, detail: bool = False) -> list[Any]:
        """Returns all rows of a kind. Unfiltered, since a server-side filter truncates the response in Ray 2.60."""
        options = ListApiOptions(limit=MAX_ROWS, timeout=math.ceil(RESPONSE_TIMEOUT_S), detail=detail)
        return self.list(kind, options=options, raise_on_missing_output=True)


def driver_log(submission_id: str) -> str:
    """Returns the name of a driver's log."""
    return JOB_LOGS_PATH_TEMPLATE.format(submission_id=submission_id)


def _part(blocks: Iterable[bytes], start: int, size: int) -> bytes:
    """Returns at most `size` bytes of the joined blocks from `start` on; reads no block beyond them."""
    part, at = bytearray(), 0
    for block in blocks:
        part += block[max(0, start - at) :]
        at += len(block)
        if len(part) >= size:
            break
    return bytes(part[:size])


def token_headers() -> Mapping[str, str]:
    """Returns the authentication headers of Ray's clients in this process; empty if they have no token."""
    try:
        return get_auth_headers_if_auth_enabled({})
    except (RayError, RuntimeError, OSError):
        return {}


def token_headers_without_mode() -> Mapping[str, str] | None:
    """Returns headers with Ray's token on this machine; None if RAY_AUTH_MODE is set, or there is no token.

    Without RAY_AUTH_MODE, `ray start` requires a token that it finds, e.g. the one that `ray.init` writes to
    ~/.ray/auth_token, but Ray's own clients do not send it.
    """
    if "RAY_AUTH_MODE" in os.environ:
        return None
    loader = AuthenticationTokenLoader.instance()
    try:
        return loader.get_token_for_http_header(ignore_auth_mode=True) or None
    except (RayError, RuntimeError, OSError):
        return None
    finally:
        # With a cached token, a driver in this process would use it with a cluster without tokens, and actors would
        # die.
        loader.reset_cache()


def jobs_in_control_store(gcs_address: str) -> list[str]:
    """Returns the submission ids, or Ray's own ids, of jobs and drivers that have not ended, as the dashboard does.

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
    """Returns the node provider with which Ray's autoscaler starts and terminates machines, for a `ray up` file."""
    return _get_node_provider(provider, cluster_name, use_cache=False)
