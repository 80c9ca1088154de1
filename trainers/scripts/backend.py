"""A Ray Train backend that sends each worker its rank, from which its program gets torchrun's variables."""

import os
import socket
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.train.backend import Backend, BackendConfig

# torchrun's default name of a role.
ROLE = "default"


@dataclass(frozen=True)
class RankContext:
    """One of `world_size` processes.

    Attributes:
        rank: Rank among all processes; those of a node are consecutive.
        local_world_size: Number of processes on its node.
        node_number: Number of its node, from 0, in the order of ranks.
        master_address: Host of rank 0, to which the processes connect at a free port.
        devices: Ids of the accelerators of each process on its node, in the order of local ranks.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_number: int
    node_count: int
    master_address: str
    master_port: int
    devices: tuple[tuple[str, ...], ...] = ()

    @property
    def is_keeper(self) -> bool:
        """True if this process prepares its node for the others, and keeps the files that they write there."""
        return self.local_rank == 0

    def environment(self, run_id: str, restarts: int, max_restarts: int) -> dict[str, str]:
        """Returns torchrun's variables, see torch/distributed/elastic/agent/server/local_elastic_agent.py.

        TORCHELASTIC_USE_AGENT_STORE is not set, since torchrun's agent does not run, so that rank 0 has the store.
        """
        return {
            "RANK": str(self.rank),
            "LOCAL_RANK": str(self.local_rank),
            "GROUP_RANK": str(self.node_number),
            "ROLE_RANK": str(self.rank),
            "ROLE_NAME": ROLE,
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_WORLD_SIZE": str(self.local_world_size),
            "GROUP_WORLD_SIZE": str(self.node_count),
            "ROLE_WORLD_SIZE": str(self.world_size),
            "MASTER_ADDR": self.master_address,
            "MASTER_PORT": str(self.master_port),
            "TORCHELASTIC_RESTART_COUNT": str(restarts),
            "TORCHELASTIC_MAX_RESTARTS": str(max_restarts),
            "TORCHELASTIC_RUN_ID": run_id,
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        }


@dataclass(frozen=True)
class WorkerPlace:
    """The location of a worker, and the ids of its accelerators by the name of their resource."""

    node: str
    address: str
    devices: Mapping[str, Sequence[str]]


def contexts_of(workers: Sequence[WorkerPlace], port: int, resource: str | None) -> list[RankContext]:
    """Returns the context of each worker, in the order of the workers; the first worker is rank 0.

    Programs expect the ranks of a node to be consecutive, but the order of the workers may mix nodes.
    """
    nodes = list(dict.fromkeys(worker.node for worker in workers))
    local = {node: [number for number, worker in enumerate(workers) if worker.node == node] for node in nodes}
    order = [number for node in nodes for number in local[node]]
    found = []
    for number, worker in enumerate(workers):
        mine = local[worker.node]
        ids = (workers[other].devices.get(resource or "", ()) for other in mine)
        found.append(
            RankContext(
                rank=order.index(number),
                world_size=len(workers),
                local_rank=mine.index(number),
                local_world_size=len(mine),
                node_number=nodes.index(worker.node),
                node_count=len(nodes),
                master_address=workers[0].address,
                master_port=port,
                devices=tuple(tuple(each) for each in ids),
            )
        )
    return found


@dataclass
class ScriptBackendConfig(BackendConfig):
    """The backend of workers that run programs; `resource` is their accelerator's resource, None for CPUs."""

    resource: str | None = None

    @property
    def backend_cls(self) -> type["_ScriptBackend"]:
        return _ScriptBackend


@dataclass(frozen=True)
class GroupMember:
    """This process as a member of a worker group, whose id is unique; `nodes` has the node of each rank."""

    group: str
    context: RankContext
    nodes: tuple[str, ...]


class _ThisWorker:
    """Values that the backend has sent to this process."""

    member: GroupMember | None = None
    port: socket.socket | None = None


class _ScriptBackend(Backend):
    def on_start(self, worker_group: Any, backend_config: Any) -> None:
        places: list[WorkerPlace] = worker_group.execute(_place)
        port: int = worker_group.execute_single(0, _free_port)
        contexts = contexts_of(places, port, backend_config.resource)
        group = uuid.uuid4().hex[:8]
        by_rank = sorted(zip(contexts, places, strict=True), key=lambda pair: pair[0].rank)
        nodes = tuple(place.node for _, place in by_rank)
        told = [
            worker_group.execute_single_async(number, _tell, GroupMember(group, context, nodes))
            for number, context in enumerate(contexts)
        ]
        ray.get(told)


def this_member() -> GroupMember:
    """Returns this worker's place in its group, which the backend has sent."""
    assert _ThisWorker.member is not None, "only a worker of a ScriptBackendConfig asks"
    return _ThisWorker.member


def _place() -> WorkerPlace:
    context = ray.get_runtime_context()
    return WorkerPlace(context.get_node_id(), ray.util.get_node_ip_address(), context.get_accelerator_ids())


def release_port() -> None:
    """Releases the group's port, for the program that this worker is about to start."""
    if _ThisWorker.port is not None:
        _ThisWorker.port.close()
        _ThisWorker.port = None


def _free_port() -> int:
    """Returns a port of this node, held until `release_port`, since preparing the node may take hours."""
    release_port()
    _ThisWorker.port = socket.socket()
    _ThisWorker.port.bind(("", 0))
    port: int = _ThisWorker.port.getsockname()[1]
    return port


def _tell(member: GroupMember) -> None:
    _ThisWorker.member = member
    # Read by this worker's console.
    os.environ["RANK"] = str(member.context.rank)
