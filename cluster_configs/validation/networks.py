"""Networks that rules ask about."""

import ipaddress

# A larger network is nobody's own.
LEAST_PREFIX = 8


def is_the_world(network: str) -> bool:
    """Whether a network, as ADDRESS/BITS, is the world or half of it."""
    try:
        return "/" in network and ipaddress.ip_network(network, strict=False).prefixlen < LEAST_PREFIX
    except ValueError:
        return False
