"""Addresses of clusters: those that can only mean the machine on which they are used, and those that are names."""

import ipaddress
import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

# A cluster that `rayscribe cluster up` started. How it is reached, a forwarded port among it, may change while a run
# waits for it; its name stays.
CLUSTER_SCHEME = "cluster://"
HTTP = ("http://", "https://")


def is_loopback(host: str) -> bool:
    """Whether a host name or IP address, without a port, can only be this machine."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_loopback_url(url: str) -> bool:
    """The same of a URL's host; False where the URL names none."""
    try:
        return is_loopback(urlsplit(url).hostname or "")
    except ValueError:
        return False


def direct(url: str) -> dict[str, Any]:
    """Options with which `requests` calls a URL of loopback past the user's proxies and the passwords of ~/.netrc.

    A proxy would look for the URL on its own loopback, and a password would take the place of the token. Other URLs are
    called as the user's environment has it.
    """
    if not is_loopback_url(url):
        return {}
    return {"proxies": dict.fromkeys(("http", "https", "all")), "auth": _unchanged}


def _unchanged(request: Any) -> Any:
    return request


def cluster_address(name: str) -> str:
    """The address of a cluster that is known by its name."""
    return f"{CLUSTER_SCHEME}{name}"


def cluster_name(address: str) -> str | None:
    """The name of a cluster in its address; None for a URL."""
    return address.removeprefix(CLUSTER_SCHEME) if address.startswith(CLUSTER_SCHEME) else None


def address_in_environment(environment: Mapping[str, str] = os.environ) -> str | None:
    """The URL that RAY_API_SERVER_ADDRESS or RAY_ADDRESS names, as for Ray's own job commands.

    RAY_ADDRESS may also be what drivers join (host:6379); that is no URL, and takes no jobs from here.
    """
    for name in ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS"):
        if (value := environment.get(name, "")).startswith(HTTP):
            return value.rstrip("/")
    return None
