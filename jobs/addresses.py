"""Addresses of clusters: those that can only mean the machine on which they are used, and those that are names."""

import ipaddress
import os
import re
from typing import Any
from urllib.parse import urlsplit

# A cluster that `rayscribe cluster up` started. How it is reached, a forwarded port among it, may change while a run
# waits for it; its name stays.
CLUSTER_SCHEME = "cluster://"


def is_loopback(host: str) -> bool:
    """Whether a host name or IP address, without a port, can only be this machine."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_of(url: str) -> str:
    """The host of a URL, in lower case; empty where it names none."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def is_loopback_url(url: str) -> bool:
    """The same of a URL's host; False where the URL names none."""
    return is_loopback(host_of(url))


def direct(url: str) -> dict[str, Any]:
    """Options with which `requests` calls a URL of loopback past the user's proxies and the passwords of ~/.netrc.

    A proxy would look for the URL on its own loopback, and a password would take the place of the token. Other URLs are
    called as the user's environment has it.
    """
    if not is_loopback_url(url):
        return {}
    return {"proxies": dict.fromkeys(("http", "https", "all")), "auth": lambda request: request}


def is_cluster_address(text: str) -> bool:
    """Whether a text is the URL of a dashboard, without credentials, or the address of a cluster by its name."""
    if (name := cluster_name(text)) is not None:
        return re.fullmatch(r"[A-Za-z0-9._-]+", name) is not None
    return is_http_url(text)


def is_http_url(text: str) -> bool:
    """Whether a text is a URL of HTTP that names a host, and holds no credentials."""
    try:
        parts = urlsplit(text)
        names_host = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        return names_host and not re.search(r"[@\s]", text)
    except ValueError:
        return False


def cluster_address(name: str) -> str:
    """The address of a cluster that is known by its name."""
    return f"{CLUSTER_SCHEME}{name}"


def cluster_name(address: str) -> str | None:
    """The name of a cluster in its address; None for a URL."""
    return address.removeprefix(CLUSTER_SCHEME) if address.startswith(CLUSTER_SCHEME) else None


def address_in_environment() -> str | None:
    """The URL that RAY_API_SERVER_ADDRESS or RAY_ADDRESS names, as for Ray's own job commands.

    RAY_ADDRESS may also be what drivers join (host:6379); that is no URL, and takes no jobs from here.
    """
    for name in ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS"):
        if (value := os.environ.get(name, "")).startswith(("http://", "https://")):
            return value.rstrip("/")
    return None
