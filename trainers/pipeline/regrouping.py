"""When a worker group is to leave for another: a node of it is taken away, or there is room for more workers. Pure.

The group then stores a checkpoint, and Ray Train starts another one where there is room. It could change the size of an
elastic group itself, but would end the workers without a checkpoint.
"""

from collections.abc import Mapping, Sequence, Set

from trainers.config.parts.scaling_part import ScalingPart

# For how long there must be room: Ray Train counts the nodes anew every 20 s (TICK_INTERVAL_S of its
# AutoscalingCoordinator), and would otherwise start as few workers as before.
SETTLE_S = 25.0

Resources = Mapping[str, float]


class Regrouping:
    """Asks a worker group to leave once for each reason."""

    def __init__(self, scaling: ScalingPart, own_node: str):
        """Nothing is known of the cluster.

        Args:
            scaling: How many workers there may be, and what each takes.
            own_node: The driver's node, which ends the attempt with it.
        """
        self._scaling, self._own_node = scaling, own_node
        self._leaving: set[str] = set()
        self._room: frozenset[str] = frozenset()
        self._since_s = 0.0
        self._tried: set[frozenset[str]] = set()

    def reason(
        self, group: Sequence[str], nodes: Mapping[str, Resources], draining: Set[str], now_s: float
    ) -> str | None:
        """Why the group is to leave; None: it is not, or was asked already.

        Args:
            group: Id of each rank's node.
            nodes: Resources of all living nodes, by id.
            draining: Ids of nodes that are about to be taken away.
            now_s: Seconds from any origin.
        """
        leaving = (draining & {*group, self._own_node}) - self._leaving
        if leaving:
            self._leaving |= leaving
            ranks = [str(rank) for rank, node in enumerate(group) if node in leaving]
            whose = f"of rank {', '.join(ranks)}" if ranks else "of the driver"
            return f"the node {whose} is about to be taken away"
        if not group or not self._scaling.is_elastic:
            return None
        return self._growth(len(group), {name: each for name, each in nodes.items() if name not in draining}, now_s)

    def _growth(self, size: int, nodes: Mapping[str, Resources], now_s: float) -> str | None:
        room = min(sum(map(self._workers_on, nodes.values())), self._scaling.max_workers)
        if room <= size:
            self._room = frozenset()
            return None
        if self._room != frozenset(nodes):
            self._room, self._since_s = frozenset(nodes), now_s
        # Where the same nodes did not take more workers before, something else holds them.
        if now_s - self._since_s < SETTLE_S or self._room in self._tried:
            return None
        self._tried.add(self._room)
        return f"there is room for {room} workers instead of {size}"

    def _workers_on(self, node: Resources) -> int:
        """As Ray Train's elastic policy counts."""
        each = self._scaling.worker_resources
        return min(int(node.get(name, 0.0) // value) for name, value in each.items() if value > 0)
