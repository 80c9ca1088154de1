"""Over which network interface of a node its processes talk to those of others. Imports no torch."""

import psutil

# Read by torch's gloo when a group is made. Without it, gloo asks for the address of the host's own name, which
# /etc/hosts often gives as 127.0.1.1 or not at all; the ranks of other hosts then cannot connect.
GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"


def interface_of(address: str) -> str | None:
    """Name of this machine's network interface with an address; None where none has it, as behind a NAT."""
    found = (name for name, items in psutil.net_if_addrs().items() if address in (item.address for item in items))
    return next(found, None)
