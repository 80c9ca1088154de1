"""How Ray Train tells each worker its rank: before the workers run, as its own backends set up process groups."""

import os
import socket
import uuid
from dataclasses import dataclass
from typing import Any

import ray
from ray.train.backend import Backend, BackendConfig

from trainers.scripts.ranks import RankContext, WorkerPlace, contexts_of


@dataclass
class ScriptBackendConfig(BackendConfig):
    """The backend of workers that run programs.

    Attributes:
        resource: Name of the accelerator's resource. None: the programs compute on CPUs.
    """

    resource: str | None = None

    @property
    def backend_cls(self) -> type["_ScriptBackend"]:
        return _ScriptBackend


@dataclass(frozen=True)
class GroupMember:
    """This process as a member of a worker group, whose id no other group has; `nodes` is the node of each rank."""

    group: str
    context: RankContext
    nodes: tuple[str, ...]


class _ThisWorker:
    """What the backend has told this process."""

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
    """This worker's place in its group, which the backend has told it."""
    assert _ThisWorker.member is not None, "only a worker of a ScriptBackendConfig asks"
    return _ThisWorker.member


def _place() -> WorkerPlace:
    context = ray.get_runtime_context()
    return WorkerPlace(context.get_node_id(), ray.util.get_node_ip_address(), context.get_accelerator_ids())


def release_port() -> None:
    """Leaves the port of the group to the program of this worker, which is about to start."""
    if _ThisWorker.port is not None:
        _ThisWorker.port.close()
        _ThisWorker.port = None


def _free_port() -> int:
    """A port of this node, held until `release_port`: preparing the node may take hours."""
    release_port()
    _ThisWorker.port = socket.socket()
    _ThisWorker.port.bind(("", 0))
    port: int = _ThisWorker.port.getsockname()[1]
    return port


def _tell(member: GroupMember) -> None:
    _ThisWorker.member = member
    # Of the worker itself, for its console.
    os.environ["RANK"] = str(member.context.rank)
