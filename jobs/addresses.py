"""Addresses of clusters: URLs of dashboards, loopback addresses, and names (`cluster://NAME`)."""

import ipaddress
import os
import re
from typing import Any
from urllib.parse import urlsplit

# A cluster that `rayscribe cluster up` started, by name: its URL, such as a forwarded port, may change while a run
# waits for the cluster.
CLUSTER_SCHEME = "cluster://"


def is_loopback(host: str) -> bool:
    """Returns True if a host name or IP address, without a port, can only be this machine."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_of(url: str) -> str:
    """Returns the host of a URL in lower case; "" if the URL has no host or is invalid."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def is_loopback_url(url: str) -> bool:
    """Returns True if the host of a URL can only be this machine; False if the URL has no host."""
    return is_loopback(host_of(url))


def direct(url: str) -> dict[str, Any]:
    """Returns options of `requests` for a loopback URL, which disable the user's proxies and ~/.netrc.

    A proxy would connect to its own loopback, and a password in ~/.netrc would replace the token. For other URLs the
    options are empty, so that the user's environment applies.
    """
    if not is_loopback_url(url):
        return {}
    return {"proxies": dict.fromkeys(("http", "https", "all")), "auth": lambda request: request}


def is_cluster_address(text: str) -> bool:
    """Returns True if a text is the URL of a dashboard, without credentials, or `cluster://NAME`."""
    if (name := cluster_name(text)) is not None:
        return re.fullmatch(r"[A-Za-z0-9._-]+", name) is not None
    return is_http_url(text)


def is_http_url(text: str) -> bool:
    """Returns True if a text is an HTTP or HTTPS URL that has a host and no credentials."""
    try:
        parts = urlsplit(text)
        names_host = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        return names_host and not re.search(r"[@\s]", text)
    except ValueError:
        return False


def cluster_address(name: str) -> str:
    """Returns the address of a cluster with this name."""
    return f"{CLUSTER_SCHEME}{name}"


def cluster_name(address: str) -> str | None:
    """Returns the name of a cluster from its address; None for a URL."""
    return address.removeprefix(CLUSTER_SCHEME) if address.startswith(CLUSTER_SCHEME) else None


def address_in_environment() -> str | None:
    """Returns the URL in RAY_API_SERVER_ADDRESS or RAY_ADDRESS, as Ray's own job commands read it.

    An address for drivers in RAY_ADDRESS (host:6379) is ignored, since it does not accept jobs. None without a URL.
    """
    for name in ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS"):
        if (value := os.environ.get(name, "")).startswith(("http://", "https://")):
            return value.rstrip("/")
    return None
