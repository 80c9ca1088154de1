"""What the dashboard of a Ray cluster answers to a plain question, with and without a token."""

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import requests
from ray._private.authentication.http_token_authentication import get_auth_headers_if_auth_enabled
from ray.exceptions import RayError

from jobs.errors import ClusterError

# Ray's versions and Python's; asks for a token where the cluster has one.
METADATA = "/api/v0/cluster_metadata"
ANSWER_DEADLINE_S = 10.0
LOOPBACK = ("localhost", "::1")


@dataclass(frozen=True)
class Answer:
    """What came back.

    Attributes:
        status: HTTP's.
        data: The `data` of Ray's answer; empty where it is not JSON.
    """

    status: int
    data: Mapping[str, Any]

    @property
    def refused(self) -> bool:
        """Whether a token is missing (401), or is a wrong one (403)."""
        return self.status in (401, 403)


def ask(address: str, *, with_token: bool) -> Answer:
    """Asks a dashboard for its cluster's versions.

    Args:
        address: Its URL.
        with_token: Send the token that Ray itself would send from here.

    Raises:
        ClusterError: nothing answers.
    """
    try:
        answer = requests.get(
            address.rstrip("/") + METADATA,
            headers=_token_header() if with_token else {},
            timeout=ANSWER_DEADLINE_S,
            allow_redirects=False,
        )
    except requests.RequestException as error:
        raise ClusterError(
            f"{address} does not answer ({type(error).__name__}): check the address, and that the cluster is up"
        ) from error
    try:
        content = answer.json()
    except ValueError:
        content = None
    data = content.get("data") if isinstance(content, dict) else None
    return Answer(answer.status_code, data if isinstance(data, dict) else {})


def is_loopback(address: str) -> bool:
    """Whether only this machine can mean this address."""
    host = urlsplit(address).hostname or ""
    return host in LOOPBACK or host.startswith("127.")


def seen_from_outside(address: str) -> str | None:
    """The same port at the address under which other machines know this one; None where it has none."""
    parts = urlsplit(address)
    outside = _own_address()
    return None if outside is None else f"{parts.scheme}://{outside}:{parts.port or 80}"


def _token_header() -> Mapping[str, str]:
    # Ray has no public call for it; its own clients send this.
    try:
        return get_auth_headers_if_auth_enabled({})
    except (RayError, RuntimeError, OSError):
        return {}


def _own_address() -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Sends nothing: the kernel only chooses the interface. The address is one of RFC 5737's.
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        own = str(probe.getsockname()[0])
    return None if own.startswith(("127.", "0.")) else own
