"""What torchrun tells each process: its rank, who the others are, and where they meet. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# torchrun's name of a role that was not named.
ROLE = "default"


@dataclass(frozen=True)
class RankContext:
    """One of `world_size` processes.

    Attributes:
        rank: Of all; those of a node follow each other.
        local_rank: Of its node.
        local_world_size: Processes of its node.
        node_number: Of its node, in the order of ranks.
        node_count: Nodes of the group.
        master_address: Host of rank 0, where the processes meet.
        master_port: A port there that was free.
        devices: Ids of the accelerators of each process of its node, in the order of local ranks.
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
        """Whether this process prepares its node for the others, and keeps what they write there."""
        return self.local_rank == 0

    def environment(self, run_id: str, restarts: int, max_restarts: int) -> dict[str, str]:
        """Variables of torchrun for this process, see torch/distributed/elastic/agent/server/local_elastic_agent.py.

        Without TORCHELASTIC_USE_AGENT_STORE, which says that torchrun itself holds the store: here rank 0 does.
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
    """Where a worker is, and which accelerators it has by the name of their resource."""

    node: str
    address: str
    devices: Mapping[str, Sequence[str]]


def contexts_of(workers: Sequence[WorkerPlace], port: int, resource: str | None) -> list[RankContext]:
    """The context of each worker, in their order; the first one is rank 0.

    Programs expect the ranks of a node to follow each other, which the order of workers need not keep.
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
