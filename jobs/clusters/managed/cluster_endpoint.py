"""Resolves a cluster's address to the URL and token of its dashboard.

A run keeps `cluster://NAME`, since the forwarded port and the token of a cluster may change during the run. Each
process opens one connection to a cluster on first use, and keeps it until the process ends.
"""

import atexit
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from jobs.addresses import cluster_name, is_loopback_url
from jobs.clusters.managed.cluster_record import (
    ClusterRecord,
    LocalRecord,
    RayUpRecord,
    find_record,
    record_at,
    start_commands,
    was_taken_down,
)
from jobs.clusters.managed.ssh_tunnel import Tunnel
from jobs.errors import ClusterError, ClusterGoneError
from trainers.distributed.local_ray import gcs_address_at

_LOCK = threading.Lock()
_LOCAL_HOSTS = ("127.0.0.1", "localhost")
_TUNNELS: dict[str, Tunnel] = {}


@dataclass(frozen=True)
class ClusterEndpoint:
    """URL and headers for requests to a cluster's dashboard.

    Attributes:
        headers: Headers of each request; None for those of Ray's own clients in this process.
        on_this_machine: True if the cluster's jobs see this machine's files.
        ensure: Reopens the connection if it was lost; raises ClusterError if that fails.
    """

    url: str
    headers: Mapping[str, str] | None
    on_this_machine: bool
    ensure: Callable[[], None] = field(default=lambda: None)


def connect(address: str) -> ClusterEndpoint:
    """Connects to a cluster, by the URL of its dashboard or cluster://NAME.

    Raises:
        ClusterError: the cluster does not respond, or was started by another machine.
        ClusterGoneError: the cluster was taken down from here, or its Ray has ended, and thus its jobs.
    """
    name = cluster_name(address)
    if name is None:
        known = record_at(address)
        if known is None or known.dashboard is None:
            return ClusterEndpoint(address, _default_headers(address), is_loopback_url(address))
        # The recorded URL, since another process may listen at another loopback address.
        return ClusterEndpoint(known.dashboard, token_headers_of(known), on_this_machine=True)
    record = find_record(name)
    if record is None:
        if was_taken_down(name):
            raise ClusterGoneError(f"{address} was taken down; start it again: {start_commands(name)}")
        raise ClusterError(
            f"{address} is not known on this machine: start it here ({start_commands(name)}), or use the machine that "
            "has started it"
        )
    if isinstance(record, LocalRecord):
        if not record.ray_lives():
            raise ClusterGoneError(f"{address} has ended; start it again: rayscribe cluster up --local --name {name}")
        if record.dashboard is None:
            raise ClusterError(f"{address} is not up yet: repeat `rayscribe cluster up --local --name {name}`")
        return ClusterEndpoint(record.dashboard, token_headers_of(record), on_this_machine=True)
    if record.ssh is None:
        raise ClusterError(f"{address} is not up yet: repeat `rayscribe cluster up`, which continues")
    tunnel = _tunnel_of(record)
    tunnel.ensure()
    return ClusterEndpoint(tunnel.url, token_headers_of(record), on_this_machine=False, ensure=tunnel.ensure)


def token_headers_of(record: ClusterRecord) -> Mapping[str, str]:
    """Returns headers with a cluster's token; raises ClusterError if the token's file cannot be read."""
    try:
        return {"Authorization": f"Bearer {record.token_path.read_text(encoding='utf-8').strip()}"}
    except OSError as error:
        raise ClusterError(f"the token of cluster {record.name} cannot be read: {error}") from error


def _default_headers(address: str) -> Mapping[str, str] | None:
    parts = urlsplit(address)
    if parts.hostname not in _LOCAL_HOSTS or gcs_address_at(parts.port or 80) is None:
        # Not a local Ray, so it must not get the token; at other loopback addresses, another process may listen.
        return None
    # Imported here, since it imports Ray.
    from jobs.clusters.ray_private import token_headers_without_mode  # noqa: PLC0415

    return token_headers_without_mode()


def _tunnel_of(record: RayUpRecord) -> Tunnel:
    with _LOCK:
        known = _TUNNELS.get(record.name)
        if known is None or known.ssh != record.ssh:
            if known is not None:
                known.close()
            elif not _TUNNELS:
                atexit.register(close_tunnels)
            _TUNNELS[record.name] = Tunnel(record)
        return _TUNNELS[record.name]


def close_tunnels() -> None:
    """Closes all connections of this process."""
    with _LOCK:
        while _TUNNELS:
            _TUNNELS.popitem()[1].close()
