"""The process group of the workers, over the addresses by which Ray's nodes know each other."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ray
from ray.train.torch import TorchConfig
from ray.train.torch.config import _TorchBackend

from trainers.distributed.network_interface import GLOO_INTERFACE, interface_of

# Ray Train shares the GPUs of a node's workers by the first, and counts devices by it; where both are set, HIP reads
# the second, in which Ray has left each worker its own GPU alone (Ray 2.60, train/v2/_internal/callbacks).
VISIBLE, VISIBLE_TO_HIP = "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"


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
        worker_group.execute(share_devices)
        if backend_config.check is not None:
            worker_group.execute(run_check, backend_config.check)
        worker_group.execute(choose_interface)
        super().on_start(worker_group, backend_config)


def share_devices() -> None:
    """Has a worker on AMD's GPUs see those of all workers of its node, as one on NVIDIA's does."""
    if VISIBLE in os.environ and VISIBLE_TO_HIP in os.environ:
        os.environ[VISIBLE_TO_HIP] = os.environ[VISIBLE]


def run_check(check: Callable[[], None]) -> None:
    """Calls it: Ray sends functions with a name only."""
    check()


def choose_interface() -> None:
    """Has gloo use the interface with the node's address, unless the user has chosen one."""
    name = interface_of(ray.util.get_node_ip_address())
    if name is not None:
        os.environ.setdefault(GLOO_INTERFACE, name)
