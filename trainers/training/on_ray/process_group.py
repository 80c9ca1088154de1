"""The process group of the workers, over the addresses by which Ray's nodes know each other."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psutil
import ray
from ray.train.torch import TorchConfig
from ray.train.torch.config import _TorchBackend

# Read by torch's gloo when a group is made. Without it, gloo asks for the address of the host's own name, which
# /etc/hosts often gives as 127.0.1.1 or not at all; the ranks of other hosts then cannot connect.
GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"


@dataclass
class NodeAddressTorchConfig(TorchConfig):
    """Ray's TorchConfig, whose workers talk gloo over the network of their Ray.

    Attributes:
        check: Called on each worker first: a node that cannot train says so before NCCL fails there.
    """

    check: Callable[[], None] | None = None

    @property
    def backend_cls(self) -> type["_NodeAddressBackend"]:
        return _NodeAddressBackend


class _NodeAddressBackend(_TorchBackend):
    def on_start(self, worker_group: Any, backend_config: Any) -> None:
        if backend_config.check is not None:
            worker_group.execute(run_check, backend_config.check)
        worker_group.execute(choose_interface)
        super().on_start(worker_group, backend_config)


def run_check(check: Callable[[], None]) -> None:
    """Calls it: Ray sends functions with a name only."""
    check()


def choose_interface() -> None:
    """Has gloo use the interface with the node's address, unless the user has chosen one."""
    name = interface_of(ray.util.get_node_ip_address())
    if name is not None:
        os.environ.setdefault(GLOO_INTERFACE, name)


def interface_of(address: str) -> str | None:
    """Name of this machine's network interface with an address; None where none has it, as behind a NAT."""
    found = (name for name, items in psutil.net_if_addrs().items() if address in (item.address for item in items))
    return next(found, None)
