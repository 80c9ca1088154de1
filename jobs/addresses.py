"""Addresses that can only mean the machine on which they are used."""

import ipaddress
from urllib.parse import urlsplit


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
