"""What the dashboard of a Ray cluster responds to a plain request, with and without a token."""

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import requests

from jobs.addresses import direct
from jobs.errors import ClusterError

# Ray's and Python's versions; needs a token where the cluster has one.
METADATA = "/api/v0/cluster_metadata"
TIMEOUT_S = 10.0


@dataclass(frozen=True)
class DashboardResponse:
    """Status code of a response of the dashboard, and the `data` of Ray's JSON; empty where it is not JSON."""

    status: int
    data: Mapping[str, Any]


def get_metadata(address: str, *, with_token: bool, headers: Mapping[str, str] | None = None) -> DashboardResponse:
    """Requests the versions that a cluster runs; without headers, with the token that Ray would send from here.

    Raises:
        ClusterError: there is no response.
    """
    if headers is None:
        headers = _token_headers() if with_token else {}
    try:
        response = requests.get(
            address.rstrip("/") + METADATA,
            headers=dict(headers) if with_token else {},
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
    """The same port at the address by which other machines know this one; None where this one has no such address."""
    parts = urlsplit(address)
    host = _own_address()
    return None if host is None else f"{parts.scheme}://{host}:{parts.port or 80}"


def _token_headers() -> Mapping[str, str]:
    # Only now: it loads Ray.
    from jobs.clusters.ray_private import token_headers  # noqa: PLC0415

    return token_headers()


def _own_address() -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Sends nothing: the kernel only chooses the interface. The address is one of RFC 5737's.
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        own = str(probe.getsockname()[0])
    return None if own.startswith(("127.", "0.")) else own
