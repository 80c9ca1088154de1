"""Input of preflight: a recipe, the folder that is packaged with it, and the cluster where it should run."""

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import requests

from jobs.addresses import direct
from jobs.clusters.managed.cluster_endpoint import connect
from jobs.clusters.managed.cluster_record import is_local_address
from jobs.errors import ClusterError
from jobs.scheduler.feasibility import Capacity
from jobs.submission.assemble import Bundle, collect_bundle
from jobs.submission.job_spec import JobSpec
from trainers.findings import Moment, Need

if TYPE_CHECKING:
    # Imports Ray, which is not needed without a cluster.
    from jobs.clusters.registry import Clusters

# Ray's and Python's versions; needs a token if the cluster has one.
METADATA = "/api/v0/cluster_metadata"
TIMEOUT_S = 10.0


@dataclass(frozen=True)
class DashboardResponse:
    """Status code of the dashboard's response, and `data` from its JSON; `data` is empty if the body is not JSON."""

    status: int
    data: Mapping[str, Any]


def get_metadata(address: str, headers: Mapping[str, str]) -> DashboardResponse:
    """Requests the versions of a cluster; raises ClusterError if there is no response."""
    try:
        response = requests.get(
            address.rstrip("/") + METADATA,
            headers=dict(headers),
            timeout=TIMEOUT_S,
            allow_redirects=False,
            **direct(address),
        )
    except requests.RequestException as error:
        raise ClusterError(
            f"{address} does not respond ({type(error).__name__}): check the address, and that the cluster is up"
        ) from error
    try:
        content = response.json()
    except ValueError:
        content = None
    data = content.get("data") if isinstance(content, dict) else None
    return DashboardResponse(response.status_code, data if isinstance(data, dict) else {})


def external_url(address: str) -> str | None:
    """Returns a URL's scheme and port at this machine's external address; None if it has no such address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Only lets the kernel choose the interface; sends nothing. The address is reserved for documentation (RFC
            # 5737).
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        own = str(probe.getsockname()[0])
    parts = urlsplit(address)
    return None if own.startswith(("127.", "0.")) else f"{parts.scheme}://{own}:{parts.port or 80}"


class Context:
    """One preflight; data that several checks need is read once."""

    def __init__(
        self,
        spec: JobSpec | None,
        address: str | None,
        clusters: "Clusters | None",
        *,
        deep: bool,
        bundle: Bundle | None = None,
    ):
        """Sends no request yet.

        Without a recipe, only the cluster is checked. Without an address, no cluster is known; without `clusters`,
        only the service can connect to it. With `deep`, checks may take minutes, and some also run on the nodes;
        otherwise they take about 20 seconds. A `bundle`, if given, is used as the package.
        """
        self.spec, self.address, self.clusters, self.deep = spec, address, clusters, deep
        self._collected = bundle

    @property
    def elsewhere(self) -> bool:
        """True if the job would not see this machine's files, as far as is known.

        If a submission names no cluster, a service chooses one; if `rayscribe preflight` names none, this machine is
        checked.
        """
        return not (self.deep if self.address is None else is_local_address(self.address))

    @cached_property
    def bundle(self) -> Bundle:
        """The files to package; raises like `collect_bundle`."""
        assert self.spec is not None
        return self._collected or collect_bundle(self.spec)

    @cached_property
    def without_token(self) -> DashboardResponse | ClusterError:
        return self._get_metadata(with_token=False)

    @cached_property
    def with_token(self) -> DashboardResponse | ClusterError:
        return self._get_metadata(with_token=True)

    @cached_property
    def capacity(self) -> Capacity | None:
        """The cluster's capacity; None if it is not known."""
        if self.address is None or self.clusters is None or isinstance(self.with_token, ClusterError):
            return None
        try:
            return self.clusters.capacity(self.address)
        except ClusterError:
            return None

    def _get_metadata(self, *, with_token: bool) -> DashboardResponse | ClusterError:
        # Imported here, since it imports Ray.
        from jobs.clusters.ray_private import token_headers  # noqa: PLC0415

        try:
            endpoint = connect(str(self.address))
            headers = token_headers() if endpoint.headers is None else endpoint.headers
            return get_metadata(endpoint.url, headers if with_token else {})
        except ClusterError as error:
            return error


def _need(is_met: Callable[[Context], bool], lacking: str) -> Need[Context]:
    return Need(Moment.CLIENT, lambda context: None if is_met(context) else lacking)


# Needs of the client's checks.
RECIPE = _need(lambda context: context.spec is not None, "no recipe is named")
CLUSTER = _need(
    lambda context: context.address is not None,
    "no cluster is known; give --address http://<head>:8265, or start one: rayscribe cluster up --local",
)
# Without a token the response is 401, with a wrong one 403.
RESPONSE = _need(
    lambda context: isinstance(context.with_token, DashboardResponse) and context.with_token.status not in (401, 403),
    "the cluster does not respond to us",
)
CAPACITY = _need(lambda context: context.capacity is not None, "the cluster does not report its resources")
